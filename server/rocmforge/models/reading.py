"""Reads what a model file holds, whatever kind of model it is."""

from __future__ import annotations

from gguf.constants import GGUFType, Keys

from rocmforge.errors import BadAdapter, UnsupportedArchitecture
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.architectures import ARCHITECTURES, read_config
from rocmforge.models.config import ModelConfig
from rocmforge.models.encoder_config import (
    ENCODERS,
    is_encoder,
    read_encoder_config,
)
from rocmforge.models.encoder_weights import check_encoder_tensors
from rocmforge.models.weights import check_tensors


def read_model(file: GgufFile) -> ModelConfig:
    """Reads the configuration of a decoder or an encoder, and checks that its tensors are there.

    Raises:
        UnsupportedArchitecture: There is no row for it, or it uses a feature we do not have.
        UnsupportedTensor: A tensor is missing, unexpected or of the wrong shape.
        BadAdapter: It is a LoRA adapter.
        BadGguf: A key is missing, of the wrong type, or contradicts another.
    """
    if file.get_str(Keys.General.TYPE, GGUFType.MODEL) == GGUFType.ADAPTER:
        raise BadAdapter(
            str(file.path), f"it is not a model. Serve its base model with --lora NAME={file.path}"
        )
    architecture = file.get_str("general.architecture")
    if is_encoder(file):
        encoder = read_encoder_config(file)
        check_encoder_tensors(encoder, file)
        return encoder
    if architecture not in ARCHITECTURES:
        raise UnsupportedArchitecture(architecture, (*ARCHITECTURES, *ENCODERS))
    config = read_config(file)
    check_tensors(config, file)
    return config
