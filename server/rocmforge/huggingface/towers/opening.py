"""The tower of a folder as a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from rocmforge.checkpoint.locator import Locator
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.checkpoint.tokenizer import TokenizerData
from rocmforge.errors import BadTokenizer
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.shards import WeightFile
from rocmforge.huggingface.towers.names import TABLES, tower_names
from rocmforge.huggingface.weights import plus_one, read_weights
from rocmforge.models.checkpoint import Checkpoint, Identity
from rocmforge.models.config import ModelConfig
from rocmforge.models.layouts import (
    axes_first,
    colours_first,
    merge_by_patch,
    turn_gemma4_tower,
    turn_projection,
    with_unit_norms,
    without_places,
)
from rocmforge.models.rope import RopeFactors
from rocmforge.models.vision.towers import (
    GEMMA4_UNIFIED,
    GEMMA4_UNIT_NORMS,
    PIXTRAL_TOWERS,
    WITHOUT_PLACES,
)
from rocmforge.models.weights import check_weights


def open_tower(
    config: ModelConfig,
    folder: Folder,
    files: tuple[WeightFile, ...],
    identify: Callable[[], Identity],
) -> Checkpoint:
    """Opens a tower; reads no weights.

    Args:
        config: What the folder says of it.
        folder: The model's.
        files: Its weights, those of the tower among them.
        identify: Returns what tells these files from others later.

    Raises:
        UnsupportedTensor: One is missing, unexpected, or of a type or a shape that cannot be.
    """
    names = tower_names(config)
    weights: dict[str, Tensor] = read_weights(config, files, names)
    if config.architecture == "gemma4-tower":
        colours_first(config, weights)
        turn_gemma4_tower(config, weights)
        weights = with_unit_norms(config, weights, GEMMA4_UNIT_NORMS)
    elif config.architecture == GEMMA4_UNIFIED:
        colours_first(config, weights)
        axes_first(weights)
        weights = with_unit_norms(config, weights, GEMMA4_UNIT_NORMS)
    elif (tower := config.tower) is not None and tower.averages:
        if (norm := weights.get("projector.norm")) is not None:
            weights["projector.norm"] = plus_one(norm)
        turn_projection(weights)
    if config.architecture in PIXTRAL_TOWERS:
        merge_by_patch(config, weights)
    if config.architecture in WITHOUT_PLACES:
        without_places(config, weights)
    stored = [info.name for file in files for info in file.tensors]
    prefix = names.prefix_of(stored)

    def name_of(place: str) -> str:
        return names.name_of(place, prefix)

    check_weights(config, weights, name_of)
    return Checkpoint(
        path=folder.path,
        size_bytes=0,  # the model's files have it
        config=config,
        weights=MappingProxyType(weights),
        name_of=name_of,
        rope_factors=RopeFactors(),
        chat_templates=MappingProxyType({}),
        has_tokenizer=False,
        read_tokenizer=_no_tokenizer,
        identify=identify,
        locate=Locator((file.path, file.map) for file in files),
        release=weights.clear,
    )


def has_tower(files: tuple[WeightFile, ...]) -> bool:
    """Returns whether the files have the weights of a tower."""
    names = (info.name for file in files for info in file.tensors)
    return any(table.find(name) == ("patches.matrix",) for name in names for table in TABLES)


def _no_tokenizer() -> TokenizerData:
    raise BadTokenizer("A tower has no tokenizer: it reads images.")
