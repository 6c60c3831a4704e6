"""Runners that a test closes at its end."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.backend.step import StepOutput
from rocmforge_hip.backend import create as create_hip
from rocmforge_hip.run.runner import HipRunner
from rocmforge_reference.backend import create as create_reference
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL


def load_hip(stack: ExitStack, model: Path, options: LoadOptions = SMALL) -> HipRunner:
    """A decoder on the HIP backend."""
    runner = load_file(create_hip(), model, options)
    assert isinstance(runner, HipRunner)
    return stack.enter_context(closing(runner))


def load_reference(stack: ExitStack, model: Path, options: LoadOptions = SMALL) -> Runner:
    """Any model on the reference backend."""
    return stack.enter_context(closing(load_file(create_reference(), model, options)))


def bits(output: StepOutput) -> tuple[bytes, bytes]:
    """The tokens of a step and their log-probabilities, to be compared to the last bit."""
    assert output.logprobs is not None
    return output.token_ids.tobytes(), output.logprobs.tobytes()
