"""Servers that a benchmark starts for itself, and what their metrics say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes.server import LiveServer

NAME: Final = "model"
"""The model's name at these servers."""
_START_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """What servers have in common.

    Args:
        model: a file or folder.
        backend: its name.
        streams: how many run at once; as many again may wait.
        context: tokens of a sequence.
        settings: further ones.
    """

    model: Path
    backend: str
    streams: int
    context: int
    settings: Sequence[str] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """What follows the Python interpreter."""
        return (
            *("-m", "rocmforge", "serve", str(self.model.resolve()), "--port", "{port}"),
            *("--served-model-name", NAME, "--backend", self.backend),
            *("--max-context", str(self.context), "--max-sequences", str(self.streams)),
            *("--max-waiting", str(2 * self.streams), *self.settings),
        )


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments before `--` and those behind it, which are settings of servers.

    argparse would give the latter to the first positional argument.
    """
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:cut]), list(arguments[cut + 1 :])


@contextmanager
def serve(
    served: Served, flags: Sequence[Sequence[str]], *, at_once: bool = True
) -> Iterator[list[LiveServer]]:
    """Starts a server for each list of flags.

    Args:
        served: what they have in common.
        flags: what each has for itself.
        at_once: whether they load together; on one device, each has to see what the last one took.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = [
            LiveServer((*served.command, *own), Path(folder, f"{number}.log"), start_s=_START_S)
            for number, own in enumerate(flags)
        ]
        with ThreadPoolExecutor(len(servers) if at_once else 1) as threads:
            list(threads.map(stack.enter_context, servers))
        yield servers


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a server's metrics were at one moment."""

    _samples: Sequence[tuple[str, Mapping[str, str], float]]

    @classmethod
    def of(cls, server: LiveServer) -> Self:
        """Asks a server."""
        families = text_string_to_metric_families(server.get("/metrics").text)
        return cls([(s.name, s.labels, s.value) for family in families for s in family.samples])

    def value(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples of that name, without our prefix, and with these labels.

        Raises:
            LookupError: There are none.
        """
        found = [
            value
            for sample, own, value in self._samples
            if sample == f"rocmforge_{name}" and labels.items() <= own.items()
        ]
        if not found:
            raise LookupError(f"the server has no metric {name}")
        return sum(found)

    def labels(self, name: str) -> Mapping[str, str]:
        """Returns the labels of the only sample of that name."""
        (found,) = (labels for sample, labels, _ in self._samples if sample == f"rocmforge_{name}")
        return found
