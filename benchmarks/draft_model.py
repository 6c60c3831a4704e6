"""What a draft model saves at best: one that is always right, on any device.

    python -m benchmarks.draft_model MODEL.gguf --layers 5 --backend reference --clock cpu

The model's layers behind the first few are made to add nothing, and those few are the draft model.
So both say the same, whatever nonsense it is, and only time is different. Where other programs
share the processor, its time says more than the time on the wall.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rocmforge.backend import registry
from rocmforge.backend.protocol import LoadOptions, Runner, StepInput, StepOutput
from rocmforge.engine.core import EngineCore
from rocmforge.engine.messages import Submit
from rocmforge.engine.params import GenerateRequest, SamplingParams
from rocmforge.engine.plan import SchedulerLimits
from rocmforge.engine.status import EngineStats
from tests.support.shallow import write_idle, write_shallow

Clock = Callable[[], int]
PROMPT_TOKENS = 16


class CpuTimed:
    """A runner that computes when a step is submitted, and counts the processor's time for it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._took_ns = 0
        self.info = runner.info
        self.close = runner.close

    def submit(self, step: StepInput) -> None:
        """Computes the step."""
        begin = time.process_time_ns()
        self._runner.submit(step)
        self._took_ns = time.process_time_ns() - begin

    def collect(self) -> StepOutput:
        """The result, with the other time."""
        return replace(self._runner.collect(), device_ns=self._took_ns)


def main() -> None:
    """Prints a line for each number of streams."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--layers", type=int, required=True, help="of the draft model")
    parser.add_argument("--backend", default="hip")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--drafts", type=int, default=5, help="tokens to guess at most")
    parser.add_argument("--tokens", type=int, default=64, help="length of each answer")
    arguments = parser.parse_args()
    print("streams  tok/s without  with  guesses right", flush=True)
    with TemporaryDirectory() as folder:
        model = write_idle(arguments.model, arguments.layers, Path(folder, "model.gguf"))
        draft = write_shallow(arguments.model, arguments.layers, Path(folder, "draft.gguf"))
        for streams in arguments.streams:
            without, _ = measure(arguments, model, None, streams)
            with_draft, stats = measure(arguments, model, draft, streams)
            drafted, accepted = stats.model_drafted_tokens_total, stats.model_accepted_tokens_total
            print(
                f"{streams:7}{without:15.1f}{with_draft:6.1f}  {accepted} of {drafted}", flush=True
            )


def measure(
    arguments: argparse.Namespace, model: Path, draft: Path | None, streams: int
) -> tuple[float, EngineStats]:
    """Tokens a second after the first step, and what the engine counted."""
    options = LoadOptions(
        device=None,
        max_context=PROMPT_TOKENS + arguments.tokens,
        max_sequences=streams,
        max_batched_tokens=max(256, streams * PROMPT_TOKENS),
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.4,
    )
    limits = SchedulerLimits(
        max_sequences=streams, max_batched_tokens=options.max_batched_tokens, max_waiting=0
    )
    backend = registry.create(arguments.backend)
    clock: Clock = time.perf_counter_ns if arguments.clock == "wall" else time.process_time_ns

    def load(path: Path) -> Runner:
        runner = backend.load(path, options, lambda stage, share: None)
        return runner if arguments.clock == "wall" else CpuTimed(runner)

    with closing(load(model)) as runner:
        guesser = None if draft is None else load(draft)
        try:
            core = EngineCore(runner, limits, clock, drafts=guesser)
            requests = [_request(i, arguments, runner.info.vocab_size) for i in range(streams)]
            return _run(core, [Submit(request=request) for request in requests], clock)
        finally:
            if guesser is not None:
                guesser.close()


def _request(number: int, arguments: argparse.Namespace, vocab_size: int) -> GenerateRequest:
    sampling = SamplingParams(
        max_tokens=arguments.tokens, temperature=0, num_model_drafts=arguments.drafts
    )
    prompt = random.Random(number).choices(range(vocab_size), k=PROMPT_TOKENS)
    return GenerateRequest(
        request_id=number, prompt_ids=tuple(prompt), sampling=sampling, eos_ids=(), arrival_ns=0
    )


def _run(core: EngineCore, commands: list[Submit], clock: Clock) -> tuple[float, EngineStats]:
    begin = tokens = 0
    stats = EngineStats()
    while commands or core.has_work:
        report = core.step(commands)
        commands, stats = [], report.stats
        if begin:
            tokens += sum(len(event.token_ids) for event in report.events)
        elif report.events:
            begin = clock()
    return tokens / (clock() - begin) * 1e9, stats


if __name__ == "__main__":
    main()
