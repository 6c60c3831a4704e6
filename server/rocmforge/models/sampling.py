"""How tokens are drawn for requests that do not say it: as the model's maker recommends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, 2.0),
    "top_k": (-1, (1 << 31) - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 10.0),
}
"""What a request may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values of a request's fields of the same names; those of this class change nothing."""

    temperature: float = 1.0
    top_k: int = 0  # 0 = all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def changed(self, values: Mapping[str, float]) -> SamplingDefaults:
        """Returns these defaults with other values.

        Raises:
            ValueError: there is no such field, or the value is out of range; says which.
        """
        for name, value in values.items():
            least, most = RANGES.get(name, (math.inf, -math.inf))
            if name not in RANGES:
                raise ValueError(f"{name!r} is none of {', '.join(RANGES)}")
            if not least <= value <= most:
                raise ValueError(f"{name}: {value:g} is not between {least:g} and {most:g}")
            if name == "top_k" and value != int(value):
                raise ValueError(f"top_k: {value:g} is no number of tokens")
        changes = dict(values)
        if "top_k" in changes:
            changes["top_k"] = max(int(changes["top_k"]), 0)
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Says for people what is done."""
        nothing = asdict(SamplingDefaults())
        values = asdict(self)
        shown = {k: v for k, v in values.items() if k == "temperature" or v != nothing[k]}
        return ", ".join(f"{name} {value:g}" for name, value in shown.items())


def read_recommendations(
    read: Callable[[str], float | None], bad: Callable[[str, str], Exception]
) -> SamplingDefaults | None:
    """Collects what a model's files recommend, wherever they say it.

    Args:
        read: returns the value of a field of `SamplingDefaults`; None if there is none.
        bad: makes the error of a field whose value is out of range, for a reason.

    Returns:
        None if they recommend nothing.
    """
    found = None
    for name in RANGES:
        value = read(name)
        if value is None:
            continue
        try:
            found = (found or SamplingDefaults()).changed({name: value})
        except ValueError as error:
            raise bad(name, str(error)) from error
    return found


UNRECOMMENDED: Final = SamplingDefaults(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""For models of which nobody recommends anything, as in llama.cpp. Drawing from all tokens at
temperature 1, as OpenAI's models can afford, makes small and quantised models babble."""
