"""A conversation that goes on, is edited and begun anew, for models with states."""

from __future__ import annotations

from collections.abc import Sequence

from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.schedule.limits import SchedulerLimits

_SAMPLING = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


def talk(
    runner: Runner, options: LoadOptions, text: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """Asks four times; returns the answers, and how many tokens of each prompt were found.

    The second prompt goes on behind the first answer; the third and the fourth begin with the first
    70 tokens of the first one.
    """
    limits = SchedulerLimits(
        max_sequences=options.max_sequences,
        max_batched_tokens=options.max_batched_tokens,
        max_waiting=8,
    )
    core = EngineCore(runner, limits, lambda: 1)
    answers: list[list[int]] = []
    found = []

    def ask(prompt: Sequence[int]) -> None:
        request = GenerateRequest(
            request_id=len(answers),
            prompt=token_prompt(prompt),
            sampling=_SAMPLING,
            eos_ids=(),
            arrival_ns=0,
        )
        commands, answer = [request], list[int]()
        while commands or core.has_work:
            report = core.step(commands)
            commands = []
            core.check_integrity()
            for event in report.events:
                answer.extend(event.token_ids)
                if event.finish_reason is not None:
                    found.append(event.cached_tokens)
        answers.append(answer)

    ask(text[:90])
    ask([*text[:90], *answers[0], *text[90:110]])
    ask([*text[:70], *text[200:230]])
    ask([*text[:70], *text[300:330]])
    return answers, found
