"""Reads log-probabilities from the result of a step."""

from __future__ import annotations

from rocmforge.backend.step import StepOutput
from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.engine.ipc.recorded import TOP, pack


def read_logprobs(
    output: StepOutput, start: int, stop: int, num_top: int
) -> tuple[TokenLogprob, ...]:
    """Returns log-probabilities of rows `start..stop`, each with its `num_top` top_logprobs."""
    assert output.logprobs is not None, "the step asked for log-probabilities"
    ids = output.token_ids[start:stop].tolist()
    logprobs = output.logprobs[start:stop].tolist()
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(ids)
    if num_top > 0:
        assert output.top_ids is not None, "the step asked for top_logprobs"
        assert output.top_logprobs is not None, "the step asked for top_logprobs"
        top_ids = output.top_ids[start:stop, :num_top].tolist()
        top_logprobs = output.top_logprobs[start:stop, :num_top].tolist()
        tops = [tuple(zip(*row, strict=True)) for row in zip(top_ids, top_logprobs, strict=True)]
    return tuple(
        TokenLogprob(token_id=token, logprob=logprob, top=top)
        for token, logprob, top in zip(ids, logprobs, tops, strict=True)
    )


def record_rows(output: StepOutput, start: int, stop: int) -> bytes:
    """Returns what is most probable in rows `start..stop`, as it is recorded."""
    assert output.top_ids is not None, "the step asked for top_logprobs"
    assert output.top_logprobs is not None, "the step asked for top_logprobs"
    return pack(output.top_ids[start:stop, :TOP], output.top_logprobs[start:stop, :TOP])
