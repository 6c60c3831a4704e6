"""The sampling that `generation_config.json` recommends."""

from __future__ import annotations

from typing import Final

from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.sampling import SamplingDefaults

_RANGES: Final = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 10.0),
}
"""What a request may say, too."""


def read_sampling(generation: JsonObject | None) -> SamplingDefaults:
    """Returns the recommendations. As in vLLM, `do_sample` and lengths do not count.

    Raises:
        BadFolder: A value has the wrong type or is out of range.
    """
    if generation is None:
        return SamplingDefaults()
    usual = SamplingDefaults()
    values: dict[str, float] = {}
    for key, (least, most) in _RANGES.items():
        values[key] = generation.get_float(key, getattr(usual, key))
        if not least <= values[key] <= most:
            raise generation.bad(key, f"{values[key]} is not between {least:g} and {most:g}")
    top_k = generation.get_int("top_k", 0)
    if not -1 <= top_k < 1 << 31:
        raise generation.bad("top_k", f"{top_k} is no number of tokens")
    return SamplingDefaults(top_k=max(top_k, 0), **values)
