"""The metadata of a model becomes its configuration and sampling, whatever kind of model it is."""

from __future__ import annotations

from typing import Final

from rocmforge.errors import BadAdapter, BadGguf, ModelLoadError, UnsupportedArchitecture
from rocmforge.gguf.config.encoders import EncoderConfigReader
from rocmforge.gguf.config.model import ConfigReader
from rocmforge.gguf.constants import (
    ADAPTER,
    ARCHITECTURE,
    MODEL,
    SAMPLING_MIN_P,
    SAMPLING_PENALTY_REPEAT,
    SAMPLING_TEMP,
    SAMPLING_TOP_K,
    SAMPLING_TOP_P,
    TYPE,
)
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.config import ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.sampling import SamplingDefaults, read_recommendations

_SAMPLING: Final = {
    "temperature": SAMPLING_TEMP,
    "top_k": SAMPLING_TOP_K,
    "top_p": SAMPLING_TOP_P,
    "min_p": SAMPLING_MIN_P,
    "repetition_penalty": SAMPLING_PENALTY_REPEAT,
}


def read_config(file: GgufFile) -> ModelConfig:
    """Returns the configuration that the file's metadata describes.

    Raises:
        UnsupportedArchitecture: There is no row for it, or it uses a feature we do not have.
        UnsupportedTensor: It is said to rank, but has no classification head.
        BadAdapter: It is a LoRA adapter.
        ModelLoadError: It is the tower of a model.
        BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    if file.get_str(TYPE, MODEL) == ADAPTER:
        raise BadAdapter(
            str(file.path), f"it is not a model. Serve its base model with --lora NAME={file.path}"
        )
    architecture = file.get_str(ARCHITECTURE)
    if architecture == "clip":
        raise ModelLoadError(
            f"{file.path} is a tower for images, not a model. Serve the model's own file: a tower "
            f"beside it is taken, and one elsewhere with --mmproj {file.path}."
        )
    known = tuple(name for name, family in FAMILIES.items() if not family.is_tower)
    if architecture not in known:
        raise UnsupportedArchitecture(architecture, known)
    reader = ConfigReader if FAMILIES[architecture].causal else EncoderConfigReader
    return reader(file).read()


def read_sampling(file: GgufFile) -> SamplingDefaults | None:
    """Returns the sampling that the file recommends; None if it recommends nothing.

    Raises:
        BadGguf: a value has the wrong type or is out of range.
    """

    def read(name: str) -> float | None:
        key = _SAMPLING[name]
        return file.get_int(key, None) if name == "top_k" else file.get_float(key, None)

    def bad(name: str, reason: str) -> BadGguf:
        return BadGguf(str(file.path), f"the key {_SAMPLING[name]!r}: {reason}")

    return read_recommendations(read, bad)
