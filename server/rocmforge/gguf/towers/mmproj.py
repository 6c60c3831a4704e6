"""A GGUF file with a tower, as llama.cpp's converter writes it (`--mmproj`).

Its architecture is "clip"; keys begin with "clip.vision.", tensors with "v." and "mm.". Such a file
does not know the model that it belongs to.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.checkpoint.tokenizer import TokenizerData
from rocmforge.errors import BadGguf, BadTokenizer, ModelLoadError, UnsupportedArchitecture
from rocmforge.gguf.reader import GgufFile, open_gguf
from rocmforge.models.checkpoint import Checkpoint, Identity
from rocmforge.models.config import MAX_LAYERS, ActivationFunction, LayerConfig, ModelConfig
from rocmforge.models.layouts import as_declared
from rocmforge.models.rope import RopeFactors
from rocmforge.models.vision.config import (
    ProcessorConfig,
    ProcessorKind,
    Resampling,
    VisionConfig,
)
from rocmforge.models.vision.towers import PLACEHOLDERS, siglip_config, vision_config
from rocmforge.models.weights import check_weights, places

_VISION: Final = "clip.vision."
_MOST_PIXELS: Final = 65_536
_OUTSIDE: Final = MappingProxyType(
    {
        "v.patch_embd.weight": "patches.matrix",
        "v.patch_embd.bias": "patches.bias",
        "v.position_embd.weight": "embedding.token",
        "v.post_ln.weight": "output_norm",
        "v.post_ln.bias": "output_norm_bias",
        "mm.model.fc.weight": "projector.matrix",
    }
)
_IN_LAYERS: Final = MappingProxyType(
    {
        "attn_q": "attention.q",
        "attn_k": "attention.k",
        "attn_v": "attention.v",
        "attn_out": "attention.output",
        "ln1": "attention_norm",
        "ln2": "feed_forward_norm",
        "ffn_up": "feed_forward.up",
        "ffn_down": "feed_forward.down",
    }
)
_LAYER: Final = re.compile(r"v\.blk\.(\d{1,4})\.(\w+)\.(weight|bias)")


def find_mmproj(model: Path) -> tuple[Path, ...]:
    """Returns the files beside a model's whose names say that they hold a tower."""
    try:
        found = [path for path in model.parent.iterdir() if path.suffix.lower() == ".gguf"]
    except OSError:
        return ()
    return tuple(sorted(path for path in found if "mmproj" in path.name.lower() and path != model))


def open_mmproj(
    path: Path, embedding_size: int, tokens: list[str]
) -> tuple[VisionConfig, Checkpoint]:
    """Opens a tower for a model; reads headers only.

    Args:
        path: The file.
        embedding_size: The hidden size of the model.
        tokens: Of the model, by id.

    Raises:
        ModelFileNotFound: The file is not there or cannot be read.
        ModelLoadError: It is broken, holds no such tower, or one for another model.
    """
    file = open_gguf(path)
    try:
        return _read(file, embedding_size, tokens)
    except BaseException:
        file.close()
        raise


def _read(
    file: GgufFile, embedding_size: int, tokens: list[str]
) -> tuple[VisionConfig, Checkpoint]:
    if (architecture := file.get_str("general.architecture", "unknown")) != "clip":
        raise UnsupportedArchitecture(f"a tower of the architecture {architecture}", ("clip",))
    kinds = file.get_str("clip.projector_type", ""), file.get_str(f"{_VISION}projector_type", "")
    if "idefics3" not in kinds:
        raise UnsupportedArchitecture(
            f"a tower with the projector {' '.join(filter(None, kinds)) or 'that has no name'}",
            ("idefics3",),
        )
    if (size := file.get_int(f"{_VISION}projection_dim")) != embedding_size:
        raise ModelLoadError(
            f"{file.path} makes rows of {size} numbers, and the model has {embedding_size}: it is "
            "the tower of another model."
        )
    processor = _processor(file)
    marker = PLACEHOLDERS[processor.kind]
    if marker not in tokens:
        raise ModelLoadError(f"The model has no token {marker}, which stands for an image of it.")
    config = _config(file, processor, embedding_size)
    return vision_config(processor, tokens.index(marker)), _checkpoint(file, config)


def _positive(file: GgufFile, key: str, most: int = 1 << 20) -> int:
    """Returns the integer under a key of the tower, which must be in 1..most."""
    value = file.get_int(_VISION + key)
    if not 1 <= value <= most:
        raise BadGguf(str(file.path), f"{_VISION + key!r} is {value}, not in 1..{most}")
    return value


def _colours(file: GgufFile, key: str) -> tuple[float, float, float]:
    numbers = file.get_floats(_VISION + key).tolist()
    if len(numbers) != 3 or (key == "image_std" and min(numbers) <= 0):
        raise BadGguf(str(file.path), f"{_VISION + key!r} is {numbers}: not one for each colour")
    return numbers[0], numbers[1], numbers[2]


def _processor(file: GgufFile) -> ProcessorConfig:
    """Reads how images are prepared; what such files do not say is as the family has it."""
    tile = _positive(file, "image_size", _MOST_PIXELS)
    patch, merge = _positive(file, "patch_size", tile), _positive(file, "projector.scale_factor")
    if tile // patch % merge:
        raise BadGguf(str(file.path), f"{tile // patch} patches of a side, {merge} to a row")
    return ProcessorConfig(
        kind=ProcessorKind.IDEFICS3,
        tile=tile,
        longest_edge=_positive(file, "preproc_image_size", _MOST_PIXELS),
        splits=True,
        resampling=Resampling.LANCZOS,
        patch=patch,
        merge=merge,
        mean=_colours(file, "image_mean"),
        std=_colours(file, "image_std"),
    )


def _config(file: GgufFile, processor: ProcessorConfig, embedding_size: int) -> ModelConfig:
    if not file.get_bool("clip.use_gelu", False):
        raise UnsupportedArchitecture("a tower without GELU (clip.use_gelu)", ("GELU",))
    hidden_size, heads = (
        _positive(file, "embedding_length"),
        _positive(file, "attention.head_count"),
    )
    if hidden_size % heads:
        raise BadGguf(str(file.path), f"{heads} heads do not divide {hidden_size} features")
    eps = file.get_float(f"{_VISION}attention.layer_norm_epsilon")
    if not 0 < eps < 1:
        raise BadGguf(str(file.path), f"the epsilon of norms is {eps}")
    head = hidden_size // heads
    layer = LayerConfig(
        num_heads=heads,
        num_kv_heads=heads,
        key_dim=head,
        value_dim=head,
        attention_scale=head**-0.5,
        window=None,
        local_rope=False,
        intermediate_size=_positive(file, "feed_forward_length"),
    )
    return siglip_config(
        file.path.stem,
        processor,
        (layer,) * _positive(file, "block_count", MAX_LAYERS),
        hidden_size=hidden_size,
        embedding_size=embedding_size,
        norm_eps=eps,
        activation=ActivationFunction.GELU_TANH,
    )


def _checkpoint(file: GgufFile, config: ModelConfig) -> Checkpoint:
    known = {place.path: place for place in places(config.num_layers)}
    weights: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        path = _path_of(name)
        weights[path] = as_declared(tensor, known[path]) if path in known else tensor
    theirs = {path: name for name, path in _OUTSIDE.items()}
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


def _path_of(name: str) -> str:
    """Returns our name of the weight in a tensor; one that is none is refused later."""
    match = _LAYER.fullmatch(name)
    if match is not None and match[2] in _IN_LAYERS:
        bias = "_bias" if match[3] == "bias" else ""
        return f"layers.{int(match[1])}.{_IN_LAYERS[match[2]]}{bias}"
    return _OUTSIDE.get(name, f"no weight: {name}")


def _no_tokenizer() -> TokenizerData:
    raise BadTokenizer("A tower has no tokenizer: it reads images.")
