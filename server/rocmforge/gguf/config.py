"""The metadata of a model becomes its configuration, whatever kind of model it is."""

from __future__ import annotations

from gguf.constants import GGUFType, Keys

from rocmforge.errors import BadAdapter, UnsupportedArchitecture
from rocmforge.gguf.config_reader import ConfigReader
from rocmforge.gguf.encoder_config import EncoderConfigReader
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.config import ModelConfig
from rocmforge.models.families import FAMILIES


def read_config(file: GgufFile) -> ModelConfig:
    """Returns the configuration that the file's metadata describes.

    Raises:
        UnsupportedArchitecture: There is no row for it, or it uses a feature we do not have.
        UnsupportedTensor: It is said to rank, but has no classification head.
        BadAdapter: It is a LoRA adapter.
        BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    if file.get_str(Keys.General.TYPE, GGUFType.MODEL) == GGUFType.ADAPTER:
        raise BadAdapter(
            str(file.path), f"it is not a model. Serve its base model with --lora NAME={file.path}"
        )
    architecture = file.get_str(Keys.General.ARCHITECTURE)
    if architecture not in FAMILIES:
        raise UnsupportedArchitecture(architecture, tuple(FAMILIES))
    reader = ConfigReader if FAMILIES[architecture].causal else EncoderConfigReader
    return reader(file).read()
