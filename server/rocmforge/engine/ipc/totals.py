"""Counters of the engine, each declared once: what it counts, and what /metrics calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Annotated, Final, Literal, get_type_hints

import msgspec

from rocmforge.backend.step import StepCost

NS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Family:
    """The family of metrics in which a counter is exported.

    Attributes:
        name: Without the server's prefix; vLLM's name, where it has the family.
        text: What the family counts.
        unit: One of the counter in units of the family: nanoseconds become seconds.
        method: Of the draft tokens, which is a label; "" if the family has none.
        is_cost: Whether only some backends tell. The family is left out where they do not.
        is_vllms: Whether vLLM has the family, too.
    """

    name: str
    text: str
    unit: float = 1
    method: Literal["", "prompt_lookup", "draft_model", "mtp"] = ""
    is_cost: bool = False
    is_vllms: bool = False


_DRAFTS: Final = Family(
    "spec_decode_num_drafts",
    "Times that draft tokens of a sequence were checked.",
    is_vllms=True,
)
_DRAFTED: Final = Family(
    "spec_decode_num_draft_tokens", "Draft tokens that were checked.", is_vllms=True
)
_ACCEPTED: Final = Family(
    "spec_decode_num_accepted_tokens",
    "Draft tokens that were accepted: the model drew them too.",
    is_vllms=True,
)


class Totals(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """Counters that only grow, over all lives of the engine process.

    The scheduler has the only one that changes; a copy leaves with each report, and the next
    process goes on from the last.
    """

    prefill_tokens: int = 0  # computed, without what the prefix cache gave
    decode_tokens: int = 0
    steps: Annotated[int, Family("engine_steps", "Forward passes.")] = 0
    preemptions: Annotated[int, Family("num_preemptions", "Preemptions.", is_vllms=True)] = 0
    prefix_query_tokens: Annotated[
        int,
        Family(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", is_vllms=True
        ),
    ] = 0
    prefix_hit_tokens: Annotated[
        int, Family("prefix_cache_hits", "Prompt tokens found in the prefix cache.", is_vllms=True)
    ] = 0
    state_snapshots_taken: Annotated[
        int, Family("state_snapshots_taken", "Snapshots of states that were taken.")
    ] = 0
    state_snapshots_evicted: Annotated[
        int, Family("state_snapshots_evicted", "Snapshots of states that made room for others.")
    ] = 0
    device_ns: Annotated[int, Family("engine_device_seconds", "Time the device was busy.", NS)] = 0
    host_processed_rows: Annotated[
        int,
        Family(
            "host_processed_rows",
            "Rows of logits that went to the host, because a processor is not compiled.",
        ),
    ] = 0
    image_tiles: Annotated[
        int, Family("image_tiles", "Tiles of images that the tower computed.")
    ] = 0
    images_found: Annotated[
        int,
        Family("image_tiles_found", "Tiles of images that were shown before, and cost no tower."),
    ] = 0
    tower_ns: Annotated[
        int, Family("tower_seconds", "Time the device was busy with images.", NS)
    ] = 0
    drafts: Annotated[int, replace(_DRAFTS, method="prompt_lookup")] = 0
    drafted_tokens: Annotated[int, replace(_DRAFTED, method="prompt_lookup")] = 0
    accepted_tokens: Annotated[int, replace(_ACCEPTED, method="prompt_lookup")] = 0
    model_drafts: Annotated[int, replace(_DRAFTS, method="draft_model")] = 0
    model_drafted_tokens: Annotated[int, replace(_DRAFTED, method="draft_model")] = 0
    model_accepted_tokens: Annotated[int, replace(_ACCEPTED, method="draft_model")] = 0
    predictor_drafts: Annotated[int, replace(_DRAFTS, method="mtp")] = 0
    predictor_drafted_tokens: Annotated[int, replace(_DRAFTED, method="mtp")] = 0
    predictor_accepted_tokens: Annotated[int, replace(_ACCEPTED, method="mtp")] = 0
    model_draft_ns: Annotated[
        int, Family("draft_model_seconds", "Time that the draft model took, or the predictor.", NS)
    ] = 0
    read_bytes: Annotated[
        int,
        Family(
            "engine_read_bytes",
            "Bytes of weights, KV cache and states that steps had to read, each once.",
            is_cost=True,
        ),
    ] = 0
    launches: Annotated[
        int,
        Family(
            "engine_kernel_launches",
            "Calls that started kernels; a graph of them is one.",
            is_cost=True,
        ),
    ] = 0
    gap_ns: Annotated[
        int,
        Family(
            "engine_step_gap_seconds",
            "Time on the device between steps, while requests were there.",
            NS,
            is_cost=True,
        ),
    ] = 0

    tier_saved_blocks: Annotated[
        int, Family("host_cache_saved_blocks", "KV blocks that were copied to the host's memory.")
    ] = 0
    tier_saved_bytes: Annotated[
        int, Family("host_cache_saved_bytes", "Bytes of these blocks and of snapshots.")
    ] = 0
    tier_restored_blocks: Annotated[
        int,
        Family(
            "host_cache_restored_blocks",
            "KV blocks that were copied from the host's memory back to the device.",
        ),
    ] = 0
    tier_restored_bytes: Annotated[
        int, Family("host_cache_restored_bytes", "Bytes of these blocks and of snapshots.")
    ] = 0
    tier_written_blocks: Annotated[
        int, Family("cache_dir_written_blocks", "KV blocks that were written to files.")
    ] = 0
    tier_read_blocks: Annotated[
        int,
        Family(
            "cache_dir_read_blocks",
            "KV blocks that were read from files on their way back to the device.",
        ),
    ] = 0
    tier_saved_states: Annotated[
        int,
        Family(
            "host_cache_saved_snapshots",
            "Snapshots of states that were copied to the host's memory.",
        ),
    ] = 0
    tier_restored_states: Annotated[
        int,
        Family(
            "host_cache_restored_snapshots",
            "Snapshots of states that were copied from the host's memory back to the device.",
        ),
    ] = 0
    tier_written_states: Annotated[
        int,
        Family("cache_dir_written_snapshots", "Snapshots of states that were written to files."),
    ] = 0
    tier_read_states: Annotated[
        int,
        Family(
            "cache_dir_read_snapshots",
            "Snapshots of states that were read from files on their way back to the device.",
        ),
    ] = 0
    tier_refused_files: Annotated[
        int,
        Family(
            "cache_dir_refused_files",
            "Cache files that were not what they should be, and were not used.",
        ),
    ] = 0

    expert_reads: Annotated[
        int,
        Family(
            "engine_expert_reads",
            "Experts that steps read, each once in a layer, if some are on the host alone.",
            is_cost=True,
        ),
    ] = 0
    host_expert_reads: Annotated[
        int,
        Family(
            "engine_host_expert_reads",
            "Experts that steps read from the host's memory, as they had no seat on the device.",
            is_cost=True,
        ),
    ] = 0
    expert_swaps: Annotated[
        int,
        Family(
            "engine_expert_swaps",
            "Experts that took the seat of another on the device.",
            is_cost=True,
        ),
    ] = 0

    prompt_step_ns: Annotated[
        int,
        Family(
            "engine_prompt_step_seconds",
            "Time of the steps with prompts, whose time is predicted.",
            NS,
        ),
    ] = 0
    predicted_step_ns: Annotated[
        int,
        Family(
            "engine_predicted_prompt_step_seconds", "Time that was predicted for these steps.", NS
        ),
    ] = 0
    prediction_error_ns: Annotated[
        int,
        Family(
            "engine_prompt_step_error_seconds",
            "Differences between the two, each step's without its sign.",
            NS,
        ),
    ] = 0

    def count_lookup(self, drafted: int, accepted: int) -> None:
        """Counts draft tokens of one sequence in one step, and how many of them were accepted."""
        self.drafts += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted

    def count_model(self, drafted: int, accepted: int) -> None:
        """Counts the same of the draft model."""
        self.model_drafts += 1
        self.model_drafted_tokens += drafted
        self.model_accepted_tokens += accepted

    def count_predictor(self, drafted: int, accepted: int) -> None:
        """Counts the same of the predictor."""
        self.predictor_drafts += 1
        self.predictor_drafted_tokens += drafted
        self.predictor_accepted_tokens += accepted

    @property
    def draft_counts(self) -> tuple[int, int]:
        """Draft tokens that were checked, by whatever method drafted, and those accepted."""
        return (
            self.drafted_tokens + self.model_drafted_tokens + self.predictor_drafted_tokens,
            self.accepted_tokens + self.model_accepted_tokens + self.predictor_accepted_tokens,
        )

    def count_prompt_step(self, device_ns: int, predicted_ns: float) -> None:
        """Counts a step with prompts, if anything was predicted for it (0: nothing was)."""
        if predicted_ns:
            self.prompt_step_ns += device_ns
            self.predicted_step_ns += round(predicted_ns)
            self.prediction_error_ns += abs(device_ns - round(predicted_ns))

    def count_cost(self, cost: StepCost, *, after_rest: bool) -> None:
        """Counts what a step cost; a gap in which nobody wanted anything is no loss."""
        self.read_bytes += cost.bytes_read
        self.launches += cost.launches
        self.gap_ns += 0 if after_rest else cost.gap_ns
        self.expert_reads += cost.expert_reads
        self.host_expert_reads += cost.host_expert_reads
        self.expert_swaps += cost.expert_swaps


@cache
def families() -> Mapping[str, Family]:
    """Returns the families of the counters that are exported, by the counter's field."""
    found = {
        field: hint.__metadata__[0]
        for field, hint in get_type_hints(Totals, include_extras=True).items()
        if hasattr(hint, "__metadata__")
    }
    return MappingProxyType(found)
