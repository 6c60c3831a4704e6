"""What constrained sampling costs: tokens per second with and without grammars.

    python -m benchmarks.grammar_masks MODEL.gguf --streams 32 --step-ms 10

Runs the engine's loop over a device that takes a fixed time a step and makes tokens up, with the
vocabulary of MODEL. All streams follow one JSON schema, or none. With two steps in flight the
masks of a step are computed while the device runs it, if it takes masks late.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from rocmforge.backend.arrays import Int32Array, UInt64Array
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine_options import token_pieces
from rocmforge.gguf.reader import open_gguf
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.output.grammar import json_schema_grammar
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.support.fakes.fake_backend import FakeConfig, FakeRunner, LateMaskingRunner

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "pattern": "^[a-z.]{1,20}@[a-z]{1,20}\\.(com|org)$"},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 5},
            "parent": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        },
        "required": ["name", "age", "email", "tags", "parent"],
        "additionalProperties": False,
    },
}


class Timer(FakeRunner):
    """A device whose steps take a fixed time, from their submission on."""

    seconds = 0.0
    _busy_until = 0.0

    def submit(self, step: StepInput) -> None:
        now = time.perf_counter()
        self._busy_until = max(now, self._busy_until) + self.seconds
        super().submit(step)

    def _draw(self, step: StepInput, states: UInt64Array) -> Int32Array:
        """An allowed token for each row, found at a cost that does not count."""
        drawn = (states % np.uint64(self.info.vocab_size)).astype(np.int32)
        if step.sampling.allowed is None:
            return drawn
        for row, mask in enumerate(step.sampling.allowed):
            words = np.flatnonzero(mask)
            word = int(words[drawn[row] % len(words)])
            drawn[row] = 32 * word + int(mask[word]).bit_length() - 1
        return drawn

    def collect(self) -> StepOutput:
        step_end = self._busy_until - self.seconds * (len(self._queue) - 1)
        output = super().collect()
        while (left := step_end - time.perf_counter()) > 0:
            time.sleep(left if left > 2e-4 else 0)
        return output


def tokens_per_second(core: EngineCore, requests: list[GenerateRequest], steps: int) -> float:
    """The rate once every prompt has been computed."""
    core.step(requests)
    for _ in range(8):
        core.step()
    start, tokens = time.perf_counter(), 0
    for _ in range(steps):
        tokens += sum(len(event.token_ids) for event in core.step().events)
    return tokens / (time.perf_counter() - start)


class LateTimer(Timer, LateMaskingRunner):
    """The same, with masks that come while a step runs."""


def requests(streams: int, grammar: str, eos_ids: tuple[int, ...]) -> list[GenerateRequest]:
    """That many of them, each with a seed of its own."""
    return [
        GenerateRequest(
            request_id=i,
            prompt=token_prompt([1, i]),
            sampling=SamplingParams(
                max_tokens=4000, seed=i, grammar=grammar, ignore_eos=not grammar
            ),
            eos_ids=eos_ids,
            arrival_ns=0,
        )
        for i in range(streams)
    ]


def main() -> None:
    """Reads the command line and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[5.0, 10.0, 20.0])
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    with open_gguf(arguments.model) as file:
        tokenizer = Tokenizer(read_tokenizer(file.metadata))
    pieces = token_pieces(tokenizer)
    if pieces is None:
        parser.error("the model's vocabulary cannot be constrained")
    limits = SchedulerLimits(
        max_sequences=arguments.streams, max_batched_tokens=4096, max_waiting=0
    )
    schema = json_schema_grammar(SCHEMA)
    print("step ms  in flight  masks    free tok/s  schema tok/s    loss")
    for step_ms in arguments.step_ms:
        for kind, depth, masks in (
            (Timer, 1, "first"),
            (Timer, 2, "first"),
            (LateTimer, 2, "late"),
        ):
            rates = []
            for grammar in ("", schema):
                config = FakeConfig(pipeline_depth=depth, vocab_size=tokenizer.vocab_size)
                runner = kind(config, 1 << 15, arguments.streams, 1 << 15)
                runner.seconds = step_ms * 1e-3
                grammars = Grammars(pieces, tokenizer.vocab_size)
                core = EngineCore(runner, limits, time.monotonic_ns, grammars=grammars)
                batch = requests(arguments.streams, grammar, pieces.eos_ids)
                rates.append(tokens_per_second(core, batch, arguments.steps))
            free, constrained = rates
            print(
                f"{step_ms:7.1f} {depth:10d}  {masks:6s} {free:12.0f} {constrained:13.0f} "
                f"{1 - constrained / free:7.1%}"
            )


if __name__ == "__main__":
    main()
