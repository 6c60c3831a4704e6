"""How many replicas there should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext


class FirstTokenPolicy:
    """Asks for as many replicas as the queue needs, and one more while first tokens are late.

    Ray Serve applies the delays, factors and bounds of `autoscaling_config` to what it says.

    Args:
        target_first_token_s: a tenth of requests may wait longer for their first token.
    """

    def __init__(self, target_first_token_s: float = 2.0) -> None:
        self._target_s = target_first_token_s

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """Returns how many replicas are wanted, and no state."""
        assert context.config is not None
        queue = context.total_num_requests / context.config.get_target_ongoing_requests()
        late = (context.aggregated_metrics or {}).get("first_token_s", {})
        # An idle deployment still remembers slow answers; nobody waits for it.
        if context.total_num_requests and max(late.values(), default=0.0) > self._target_s:
            return max(queue, context.current_num_replicas + 1), {}
        return queue, {}
