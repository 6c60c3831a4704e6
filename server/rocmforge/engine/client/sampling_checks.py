"""The means that a backend needs for the way in which a request draws its tokens."""

from __future__ import annotations

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.errors import UnsupportedFeature


def check_sampling(sampling: SamplingParams, runner: RunnerInfo, *, has_vocabulary: bool) -> None:
    """Checks that a backend has the means for a request's parameters.

    Args:
        sampling: the parameters.
        runner: what the model can do on its device.
        has_vocabulary: whether grammars can be followed with the model's tokens.

    Raises:
        UnsupportedFeature: it has none for the grammar, the budget of reasoning, the embedding,
            the adapter or a logits processor.
    """
    if sampling.grammar:
        _check_constrains(runner, has_vocabulary)
    if sampling.thinking is not None and not runner.masks_tokens:
        raise UnsupportedFeature(
            f"The backend {runner.backend!r} cannot end a section of reasoning, so budgets for "
            "it are not available on this server."
        )
    if sampling.pooling is not None and not runner.hidden_size:
        raise UnsupportedFeature(
            f"The backend {runner.backend!r} cannot return hidden states, so embeddings are "
            "not available on this server."
        )
    if sampling.adapter >= len(runner.adapters):
        raise UnsupportedFeature(
            f"The backend {runner.backend!r} has not loaded the LoRA adapter.", param="model"
        )
    missing = {use.name for use in sampling.processors} - {*runner.logits_processors}
    if missing:
        raise UnsupportedFeature(
            f"The backend {runner.backend!r} has no logits processor {', '.join(sorted(missing))}."
        )


def _check_constrains(runner: RunnerInfo, has_vocabulary: bool) -> None:
    if not runner.masks_tokens:
        reason = f"The backend {runner.backend!r} cannot constrain its output to a grammar"
    elif not has_vocabulary:
        reason = "The model's vocabulary cannot spell every text, or has no end token"
    else:
        return
    raise UnsupportedFeature(
        f"{reason}, so structured output and forced tool calls are not available on this server."
    )
