"""Tokens per second with and without a draft model, on any device.

    HIP_PLATFORM=nvidia python -m benchmarks.draft_model MODEL.gguf --draft DRAFT.gguf
    HIP_PLATFORM=nvidia python -m benchmarks.draft_model MODEL.gguf --layers 4
    python -m benchmarks.draft_model MODEL.gguf --layers 5 --backend reference --clock cpu
    HIP_PLATFORM=nvidia python -m benchmarks.draft_model MODEL.gguf --mtp

With `--layers` the draft model is made of the model, and is always right but for rounding: the
layers behind the first few are made to add nothing, and those few are the draft model. So both say
the same, whatever nonsense it is, and what is measured is the machinery. With `--mtp` the model's
own predictor is measured, or one that is made for a Llama model without: no layer adds anything, so
that what follows a token depends on that token alone, and the predictor looks at no more.
`synthetic_model` and `synthetic_qwen` make models for both. Prompts are random tokens. Where other
programs share the processor, its time says more than the time on the wall.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import get_args

from rocmforge.backend import registry
from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.choices import ActivationBits
from rocmforge.engine.core import EngineCore
from rocmforge.engine.draft.draft_memory import draft_options
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.opening import describe
from tests.support.models.loading import load_file
from tests.support.models.predicting import load_predicting
from tests.support.models.shallow import write_idle, write_right_predictor, write_shallow

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


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the engine gave."""

    tokens: list[list[int]]  # by stream
    rate: float  # tokens a second after the first step
    stats: EngineStats


def main() -> None:
    """Prints a line for each number of streams."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    pair = parser.add_mutually_exclusive_group(required=True)
    pair.add_argument("--draft", type=Path, help="a smaller model of the same vocabulary")
    pair.add_argument("--layers", type=int, help="of a draft model that is made of the model")
    pair.add_argument(
        "--mtp", action="store_true", help="the model's predictor, or one made for it"
    )
    parser.add_argument("--backend", default="hip")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--activation-bits", choices=get_args(ActivationBits), default="auto")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--drafts", type=int, default=5, help="draft tokens of a step at most")
    parser.add_argument("--tokens", type=int, default=256, help="length of each answer")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, the median counts")
    arguments = parser.parse_args()
    print("streams  tok/s without     with  ratio  accepted drafts   as without", flush=True)
    with TemporaryDirectory() as folder:
        model, draft = arguments.model, arguments.draft
        if arguments.mtp and not _has_predictor(model):
            model = write_right_predictor(arguments.model, Path(folder, "model.gguf"))
        elif arguments.layers is not None:
            model = write_idle(arguments.model, arguments.layers, Path(folder, "model.gguf"))
            draft = write_shallow(arguments.model, arguments.layers, Path(folder, "draft.gguf"))
        for streams in arguments.streams:
            _measure(arguments, model, draft, streams)


def _has_predictor(model: Path) -> bool:
    config = describe(model).config
    return config is not None and config.predicts


def _measure(arguments: argparse.Namespace, model: Path, draft: Path | None, streams: int) -> None:
    """Prints the line of one number of streams."""
    options = LoadOptions(
        device=None,
        max_context=PROMPT_TOKENS + arguments.tokens,
        max_sequences=streams,
        max_batched_tokens=max(256, streams * PROMPT_TOKENS),
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.4,
        tensor_parallel=arguments.tensor_parallel,
        draft_tokens=arguments.drafts,
        activation_bits=arguments.activation_bits,
    )
    backend = registry.create(arguments.backend)

    with closing(load_file(backend, model, options)) as runner:
        without = _runs(arguments, runner, None, streams)
        if draft is not None:
            with closing(load_file(backend, draft, draft_options(options))) as draft_model:
                with_draft = _runs(arguments, runner, draft_model, streams)
    if draft is None:
        with closing(load_predicting(backend, model, options)) as runner:
            with_draft = _runs(arguments, runner, None, streams)
    totals = with_draft[-1].stats.totals
    drafted = totals.model_drafted_tokens + totals.predictor_drafted_tokens
    accepted = totals.model_accepted_tokens + totals.predictor_accepted_tokens
    slow, fast = (median(run.rate for run in runs) for runs in (without, with_draft))
    pairs = zip(without[-1].tokens, with_draft[-1].tokens, strict=True)
    same = sum(ours == theirs for ours, theirs in pairs)
    share = f"{accepted} of {drafted}"
    print(
        f"{streams:7}{slow:15.1f}{fast:9.1f}{fast / slow:7.2f}  {share:<17} {same} of {streams}",
        flush=True,
    )


def _runs(
    arguments: argparse.Namespace, runner: Runner, draft: Runner | None, streams: int
) -> list[Run]:
    """Runs with new engines, behind one that warms up."""
    clock: Clock = time.perf_counter_ns if arguments.clock == "wall" else time.process_time_ns
    if arguments.clock == "cpu":
        runner, draft = CpuTimed(runner), None if draft is None else CpuTimed(draft)
    limits = SchedulerLimits(
        max_sequences=streams,
        max_batched_tokens=max(256, streams * PROMPT_TOKENS),
        max_waiting=0,
    )
    requests = [_request(i, arguments, runner.info.vocab_size) for i in range(streams)]
    return [
        _run(EngineCore(runner, limits, clock, draft_runner=draft), requests, clock)
        for _ in range(1 + arguments.repeat)
    ][1:]


def _request(number: int, arguments: argparse.Namespace, vocab_size: int) -> GenerateRequest:
    sampling = SamplingParams(
        max_tokens=arguments.tokens, temperature=0, draft_model_tokens=arguments.drafts
    )
    prompt = random.Random(number).choices(range(vocab_size), k=PROMPT_TOKENS)
    return GenerateRequest(
        request_id=number, prompt=token_prompt(prompt), sampling=sampling, eos_ids=(), arrival_ns=0
    )


def _run(core: EngineCore, requests: list[GenerateRequest], clock: Clock) -> Run:
    tokens: list[list[int]] = [[] for _ in requests]
    commands = requests
    begin = before = 0
    stats = EngineStats()
    while commands or core.has_work:
        report = core.step(commands)
        commands, stats = [], report.stats
        for event in report.events:
            tokens[event.request_id] += event.token_ids
        if not begin and report.events:
            begin, before = clock(), sum(map(len, tokens))
    count = sum(map(len, tokens)) - before
    return Run(tokens, count / (clock() - begin) * 1e9, stats)


if __name__ == "__main__":
    main()
