"""The sampling that `generation_config.json` recommends."""

from __future__ import annotations

from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.sampling import RANGES, SamplingDefaults


def read_sampling(generation: JsonObject | None) -> SamplingDefaults | None:
    """Returns the recommendations. As in vLLM, `do_sample` and lengths do not count.

    Returns:
        None if there are none.

    Raises:
        BadFolder: A value has the wrong type or is out of range.
    """
    if generation is None:
        return None
    found = SamplingDefaults()
    said = False
    for key in RANGES:
        read = generation.get_int if key == "top_k" else generation.get_float
        value = read(key, None)
        if value is None:
            continue
        try:
            found, said = found.changed({key: value}), True
        except ValueError as error:
            raise generation.bad(key, str(error).removeprefix(f"{key}: ")) from error
    return found if said else None
