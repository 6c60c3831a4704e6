"""The first command to an engine process, as tests send it."""

from __future__ import annotations

from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.ipc.messages import Start
from rocmforge.engine.ipc.totals import Totals


def start_message(
    backend: str, model: str, options: LoadOptions, draft: str | None = None
) -> Start:
    """Returns the command to load a model and, if one is given, a draft model."""
    return Start(
        backend=backend,
        model=model,
        draft=draft,
        options=options,
        max_waiting=1,
        max_score_rows=1,
        max_stall_ns=0,
        prefix_cache=True,
        log_level="WARNING",
        log_format="text",
        totals=Totals(),
        vocabulary=None,
    )
