"""The reference backend, through the protocol that the engine uses.

Other backends are compared with it: tests/kernels and tests/e2e/hip/models/test_hip_models.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.backend import registry
from rocmforge.backend.protocol import Backend
from tests.backend.driving import Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

DEFAULTS = replace(SMALL, max_sequences=16, max_batched_tokens=256, kv_blocks=64)

Load = Callable[..., Driver]


@pytest.fixture(scope="session")
def backend() -> Backend:
    """The reference backend, found as the server finds it."""
    return registry.create("reference")


@pytest.fixture
def load(backend: Backend, tmp_path: Path) -> Iterator[Load]:
    """Loads a tiny model by name, or a file, with changes to the usual options."""
    with ExitStack() as stack:

        def load_model(model: str | Path, **changes: Any) -> Driver:
            path = model if isinstance(model, Path) else write_model(by_name(model), tmp_path)
            options = replace(DEFAULTS, **changes)
            runner = load_file(backend, path, options)
            return Driver(stack.enter_context(closing(runner)))

        yield load_model
