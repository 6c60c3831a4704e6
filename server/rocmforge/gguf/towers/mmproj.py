"""A GGUF file with a tower, as llama.cpp's converter writes it (`--mmproj`).

Its architecture is "clip"; keys begin with "clip.vision.", tensors with "v." and "mm.". Such a file
does not know the model that it belongs to.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocmforge.checkpoint.tensor import Summed, Tensor
from rocmforge.checkpoint.tokenizer import TokenizerData
from rocmforge.errors import BadTokenizer, ModelLoadError, UnsupportedArchitecture, naming
from rocmforge.gguf.constants import ARCHITECTURE
from rocmforge.gguf.reader import GgufFile, open_gguf
from rocmforge.gguf.towers.config import VISION, read_config, read_processor
from rocmforge.gguf.towers.names import OUTSIDE_LAYERS, paths_of
from rocmforge.models.checkpoint import Checkpoint, Identity
from rocmforge.models.config import ModelConfig
from rocmforge.models.layouts import (
    as_declared,
    cut_fused,
    halves_of_heads,
    join_bounds,
    merge_by_patch,
    turn_gemma4_tower,
    turn_projection,
    with_unit_norms,
    without_places,
)
from rocmforge.models.rope import RopeFactors
from rocmforge.models.vision.config import ProcessorKind, VisionConfig
from rocmforge.models.vision.towers import (
    GEMMA4_UNIFIED,
    GEMMA4_UNIT_NORMS,
    PIXTRAL_TOWERS,
    PLACEHOLDERS,
    WITHOUT_PLACES,
    beside_tower,
    vision_config,
)
from rocmforge.models.weights import check_weights, places

_SECOND_PICTURE: Final = "v.patch_embd.weight.1"
"""What a patch of the next picture of a film is multiplied with."""
_BREAK: Final = ("[IMG_BREAK]", "v.token_embd.img_break")
"""The token between lines of rows of Pixtral's, and its embedding, which the model has, too."""
_OF_SOUND: Final = ("a.", "mm.a.")
"""What the names of tensors of another tower begin with, which reads sound."""
_PADDING: Final = 0
"""The token whose other embedding rows have, where layers have some."""
_KINDS: Final = MappingProxyType(
    {
        "idefics3": ProcessorKind.IDEFICS3,
        "gemma3": ProcessorKind.GEMMA3,
        "gemma4v": ProcessorKind.GEMMA4,
        "gemma4uv": ProcessorKind.GEMMA4,
        "internvl": ProcessorKind.INTERNVL,
        "pixtral": ProcessorKind.PIXTRAL,
        "qwen2vl_merger": ProcessorKind.QWEN_VL,
        "qwen2.5vl_merger": ProcessorKind.QWEN_VL,
        "qwen3vl_merger": ProcessorKind.QWEN_VL,
    }
)
"""By the type of the projector."""
_TOWERS: Final = MappingProxyType(
    {
        "gemma4uv": GEMMA4_UNIFIED,
        "qwen2vl_merger": "qwen2vl-tower",
        "qwen2.5vl_merger": "qwen25vl-tower",
        "qwen3vl_merger": "qwen3vl-tower",
    }
)
"""The architectures of those that differ from others of their kind."""


def find_mmproj(model: Path) -> tuple[Path, ...]:
    """Returns the files beside a model's whose names say that they hold a tower."""
    try:
        found = [path for path in model.parent.iterdir() if path.suffix.lower() == ".gguf"]
    except OSError:
        return ()
    return tuple(sorted(path for path in found if "mmproj" in path.name.lower() and path != model))


def open_mmproj(
    path: Path, model: ModelConfig, tokens: list[str]
) -> tuple[ModelConfig, VisionConfig, Checkpoint]:
    """Opens a tower for a model; reads headers only. Returns the model with what it does with rows.

    Args:
        path: The file.
        model: What it is for.
        tokens: Of the model, by id.

    Raises:
        ModelFileNotFound: The file is not there or cannot be read.
        ModelLoadError: It is broken, holds no such tower, or one for another model.
    """
    file = open_gguf(path)
    try:
        with naming(path):
            vision, tower = _read(file, model, tokens)
            return beside_tower(model, tower.config, vision), vision, tower
    except BaseException:
        file.close()
        raise


def _read(file: GgufFile, model: ModelConfig, tokens: list[str]) -> tuple[VisionConfig, Checkpoint]:
    embedding_size = model.hidden_size
    if (architecture := file.get_str(ARCHITECTURE, "unknown")) != "clip":
        raise ModelLoadError(
            f"{file.path} is no tower for images, but has the architecture {architecture}. Give "
            "the mmproj file of this model, or leave --mmproj out."
        )
    kinds = file.get_str("clip.projector_type", ""), file.get_str(f"{VISION}projector_type", "")
    projector = next((name for name in kinds if name in _KINDS), None)
    if projector is None:
        raise UnsupportedArchitecture(
            f"a tower with the projector {' '.join(filter(None, kinds)) or 'that has no name'}",
            tuple(_KINDS),
        )
    kind = _KINDS[projector]
    if (size := file.get_int(f"{VISION}projection_dim")) != embedding_size:
        raise ModelLoadError(
            f"{file.path} makes rows of {size} numbers, and the model has {embedding_size}: it is "
            "the tower of another model."
        )
    of_family = _TOWERS.get(projector, "")
    processor = read_processor(file, kind, of_family)
    markers = [marker for marker in PLACEHOLDERS[kind] if marker in tokens]
    if not markers:
        marker = PLACEHOLDERS[kind][-1]
        raise ModelLoadError(f"The model has no token {marker}, which stands for an image of it.")
    if kind is ProcessorKind.PIXTRAL and _BREAK[0] not in tokens:
        raise ModelLoadError(f"The model has no token {_BREAK[0]}, which ends lines of an image.")
    config = read_config(file, processor, embedding_size, of_family)
    # Files do not say it: of Gemma 4, models with another embedding for each layer do not have it.
    both_ways = kind is ProcessorKind.GEMMA4 and not model.per_layer_size
    placeholder = _PADDING if model.per_layer_size else tokens.index(markers[0])
    return vision_config(processor, placeholder, both_ways=both_ways), _checkpoint(file, config)


def _checkpoint(file: GgufFile, config: ModelConfig) -> Checkpoint:
    known = {place.path: place for place in places(config.num_layers)}
    weights: dict[str, Tensor] = {}
    stored = {
        name: tensor for name, tensor in file.tensors.items() if not name.startswith(_OF_SOUND)
    }
    for name, tensor in join_bounds(stored).items():
        paths = paths_of(name)
        if len(paths) > 1 and all(path in known for path in paths):
            weights |= cut_fused(config, tensor, [known[path] for path in paths])
        else:
            path = paths[0]
            weights[path] = as_declared(tensor, known[path]) if path in known else tensor
    if config.rope is not None and _SECOND_PICTURE in file.tensors:
        del weights[paths_of(_SECOND_PICTURE)[0]]
        pictures = [file.tensors[name] for name in ("v.patch_embd.weight", _SECOND_PICTURE)]
        shape = config.hidden_size, config.patch_features
        weights["patches.matrix"] = Summed("v.patch_embd.weight, summed", pictures, shape)
    if config.architecture in PIXTRAL_TOWERS:
        weights.pop(paths_of(_BREAK[1])[0], None)
        halves_of_heads(config, weights)
        merge_by_patch(config, weights)
    if config.architecture in WITHOUT_PLACES:
        without_places(config, weights)
    _exchange_networks(config, weights)
    if config.architecture == "gemma4-tower":
        turn_gemma4_tower(config, weights)
        weights = with_unit_norms(config, weights, GEMMA4_UNIT_NORMS)
    elif config.architecture == GEMMA4_UNIFIED:
        weights = with_unit_norms(config, weights, GEMMA4_UNIT_NORMS)
    elif config.tower is not None and config.tower.averages:
        turn_projection(weights)
    theirs = {path: name for name, path in OUTSIDE_LAYERS.items()}
    check_weights(config, weights, lambda path: theirs.get(path, path))

    def release() -> None:
        weights.clear()
        file.close()

    stat = file.path.stat()
    return Checkpoint(
        path=file.path,
        size_bytes=file.size_bytes,
        config=config,
        weights=MappingProxyType(weights),
        name_of=lambda path: theirs.get(path, path),
        rope_factors=RopeFactors(),
        chat_templates=MappingProxyType({}),
        has_tokenizer=False,
        read_tokenizer=_no_tokenizer,
        identify=lambda: Identity(stat.st_size, stat.st_mtime_ns, ""),
        locate=file.locate,
        release=release,
    )


def _exchange_networks(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Gives both matrices of networks their names, which old converters have exchanged."""
    for index, layer in enumerate(config.layers):
        up, down = (f"layers.{index}.feed_forward.{part}" for part in ("up", "down"))
        wrong = config.hidden_size, layer.intermediate_size
        if wrong[0] != wrong[1] and up in weights and weights[up].shape == wrong:
            for end in ("", "_bias"):
                exchanged = weights.pop(up + end, None), weights.pop(down + end, None)
                for path, tensor in zip((down + end, up + end), exchanged, strict=True):
                    if tensor is not None:
                        weights[path] = tensor


def _no_tokenizer() -> TokenizerData:
    raise BadTokenizer("A tower has no tokenizer: it reads images.")
