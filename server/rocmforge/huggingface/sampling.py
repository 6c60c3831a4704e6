"""The sampling that `generation_config.json` recommends."""

from __future__ import annotations

from rocmforge.errors import BadFolder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.sampling import SamplingDefaults, read_recommendations


def read_sampling(generation: JsonObject | None) -> SamplingDefaults | None:
    """Returns the recommendations. As in vLLM, `do_sample` and lengths do not count.

    Returns:
        None if there are none.

    Raises:
        BadFolder: A value has the wrong type or is out of range.
    """
    if generation is None:
        return None

    def read(key: str) -> float | None:
        return generation.get_int(key, None) if key == "top_k" else generation.get_float(key, None)

    def bad(key: str, reason: str) -> BadFolder:
        return generation.bad(key, reason.removeprefix(f"{key}: "))

    return read_recommendations(read, bad)
