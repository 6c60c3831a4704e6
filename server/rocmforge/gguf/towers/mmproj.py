"""A GGUF file with a tower, as llama.cpp's converter writes it (`--mmproj`).

Its architecture is "clip"; keys begin with "clip.vision.", tensors with "v." and "mm.". Such a file
does not know the model that it belongs to.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np

from rocmforge.checkpoint.tensor import Summed, Tensor
from rocmforge.checkpoint.tokenizer import TokenizerData
from rocmforge.errors import BadGguf, BadTokenizer, ModelLoadError, UnsupportedArchitecture
from rocmforge.gguf.reader import GgufFile, open_gguf
from rocmforge.models.checkpoint import Checkpoint, Identity
from rocmforge.models.config import MAX_LAYERS, ActivationFunction, ModelConfig
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.layouts import (
    as_declared,
    cut_fused,
    halves_of_heads,
    merge_by_patch,
    turn_projection,
    without_places,
)
from rocmforge.models.rope import RopeFactors
from rocmforge.models.vision.config import (
    ProcessorConfig,
    ProcessorKind,
    Resampling,
    VisionConfig,
)
from rocmforge.models.vision.towers import (
    PIXTRAL_TOWERS,
    PLACEHOLDERS,
    WITHOUT_PLACES,
    beside_tower,
    pixtral_config,
    qwen_tower_config,
    siglip_config,
    vision_config,
)
from rocmforge.models.weights import check_weights, places

_VISION: Final = "clip.vision."
_MOST_PIXELS: Final = 65_536
_MOST_TILES: Final = 64
_RESAMPLING: Final = MappingProxyType(
    {
        ProcessorKind.IDEFICS3: Resampling.LANCZOS,
        ProcessorKind.GEMMA3: Resampling.BILINEAR,
        ProcessorKind.INTERNVL: Resampling.BICUBIC,
    }
)
_GELUS: Final = MappingProxyType(
    {
        ProcessorKind.INTERNVL: ActivationFunction.GELU,
        ProcessorKind.PIXTRAL: ActivationFunction.GELU,
    }
)
"""Of networks that have another form of it than the one with tanh."""
_GEMMA3_MERGE: Final = 4  # patches of a side that a row is made of, unless a file says so
_OUTSIDE: Final = MappingProxyType(
    {
        "v.patch_embd.weight": "patches.matrix",
        "v.patch_embd.bias": "patches.bias",
        "v.position_embd.weight": "embedding.token",
        "v.post_ln.weight": "output_norm",
        "v.post_ln.bias": "output_norm_bias",
        "mm.model.fc.weight": "projector.matrix",  # of Idefics3; of Gemma 3:
        "mm.input_projection.weight": "projector.matrix",
        "mm.soft_emb_norm.weight": "projector.norm",
        # Of Pixtral and Mistral 3, but for the last.
        "v.pre_ln.weight": "embedding.norm",
        "mm.input_norm.weight": "output_norm",
        "mm.patch_merger.weight": "projector.merger",
        "mm.1.weight": "projector.inner",
        "mm.1.bias": "projector.inner_bias",
        # Of InternVL.
        "v.class_embd": "embedding.class_token",
        "mm.model.mlp.0.weight": "projector.row_norm",
        "mm.model.mlp.0.bias": "projector.row_norm_bias",
        "mm.model.mlp.1.weight": "projector.inner",
        "mm.model.mlp.1.bias": "projector.inner_bias",
        "mm.model.mlp.3.weight": "projector.matrix",
        "mm.model.mlp.3.bias": "projector.matrix_bias",
        # Of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.
        "mm.0.weight": "projector.inner",
        "mm.0.bias": "projector.inner_bias",
        "mm.2.weight": "projector.matrix",
        "mm.2.bias": "projector.matrix_bias",
    }
)
_IN_LAYERS: Final = MappingProxyType(
    {
        "attn_q": "attention.q",
        "attn_k": "attention.k",
        "attn_v": "attention.v",
        "attn_out": "attention.output",
        "attn_q_norm": "attention.q_norm",
        "attn_k_norm": "attention.k_norm",
        "ln1": "attention_norm",
        "ln2": "feed_forward_norm",
        "ls1": "attention_scale",
        "ls2": "feed_forward_scale",
        "ffn_gate": "feed_forward.gate",
        "ffn_up": "feed_forward.up",
        "ffn_down": "feed_forward.down",
    }
)
_IN_MERGERS: Final = MappingProxyType({"norm": "norm", "fc1": "inner", "fc2": "matrix"})
_QKV: Final = "attn_qkv"
_SECOND_PICTURE: Final = "v.patch_embd.weight.1"
"""What a patch of the next picture of a film is multiplied with."""
_BREAK: Final = ("[IMG_BREAK]", "v.token_embd.img_break")
"""The token between lines of rows of Pixtral's, and its embedding, which the model has, too."""
# Pixels of a picture, where a file does not say it: those of 64 to 4,096 tokens, and of Qwen2-VL
# and Qwen2.5-VL of 4 to 4,096.
_QWEN_PIXELS: Final = (65_536, 4_194_304)
_QWEN2_PIXELS: Final = (3_136, 3_211_264)
_KINDS: Final = MappingProxyType(
    {
        "idefics3": ProcessorKind.IDEFICS3,
        "gemma3": ProcessorKind.GEMMA3,
        "internvl": ProcessorKind.INTERNVL,
        "pixtral": ProcessorKind.PIXTRAL,
        "qwen2vl_merger": ProcessorKind.QWEN_VL,
        "qwen2.5vl_merger": ProcessorKind.QWEN_VL,
        "qwen3vl_merger": ProcessorKind.QWEN_VL,
    }
)
"""By the type of the projector."""
_QWEN_TOWERS: Final = MappingProxyType(
    {
        "qwen2vl_merger": "qwen2vl-tower",
        "qwen2.5vl_merger": "qwen25vl-tower",
        "qwen3vl_merger": "qwen3vl-tower",
    }
)
"""Their architectures."""
_WINDOW: Final = 112
"""Pixels of a side of Qwen2.5-VL's windows, which files do not say."""
_LAYER: Final = re.compile(r"v\.(blk|deepstack)\.(\d{1,4})\.(\w+)\.(weight|bias)")


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
        vision, tower = _read(file, model.hidden_size, tokens)
        return beside_tower(model, tower.config, vision), vision, tower
    except BaseException:
        file.close()
        raise


def _read(
    file: GgufFile, embedding_size: int, tokens: list[str]
) -> tuple[VisionConfig, Checkpoint]:
    if (architecture := file.get_str("general.architecture", "unknown")) != "clip":
        raise UnsupportedArchitecture(f"a tower of the architecture {architecture}", ("clip",))
    kinds = file.get_str("clip.projector_type", ""), file.get_str(f"{_VISION}projector_type", "")
    projector = next((name for name in kinds if name in _KINDS), None)
    if projector is None:
        raise UnsupportedArchitecture(
            f"a tower with the projector {' '.join(filter(None, kinds)) or 'that has no name'}",
            tuple(_KINDS),
        )
    kind = _KINDS[projector]
    if (size := file.get_int(f"{_VISION}projection_dim")) != embedding_size:
        raise ModelLoadError(
            f"{file.path} makes rows of {size} numbers, and the model has {embedding_size}: it is "
            "the tower of another model."
        )
    of_qwen = _QWEN_TOWERS.get(projector, "")
    has_places = of_qwen not in WITHOUT_PLACES
    processor = _processor(file, kind) if has_places else _qwen2_processor(file, of_qwen)
    markers = [marker for marker in PLACEHOLDERS[kind] if marker in tokens]
    if not markers:
        marker = PLACEHOLDERS[kind][-1]
        raise ModelLoadError(f"The model has no token {marker}, which stands for an image of it.")
    if kind is ProcessorKind.PIXTRAL and _BREAK[0] not in tokens:
        raise ModelLoadError(f"The model has no token {_BREAK[0]}, which ends lines of an image.")
    config = _config(file, processor, embedding_size, of_qwen)
    return vision_config(processor, tokens.index(markers[0])), _checkpoint(file, config)


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


def _processor(file: GgufFile, kind: ProcessorKind) -> ProcessorConfig:
    """Reads how images are prepared; what such files do not say is as the family has it."""
    if kind is ProcessorKind.QWEN_VL:
        return _qwen_processor(file)
    if kind is ProcessorKind.PIXTRAL:
        return _pixtral_processor(file)
    tile, has_tiles = _positive(file, "image_size", _MOST_PIXELS), kind is ProcessorKind.IDEFICS3
    is_internvl = kind is ProcessorKind.INTERNVL
    patch, merge = _positive(file, "patch_size", tile), 2 if is_internvl else _GEMMA3_MERGE
    if has_tiles or f"{_VISION}projector.scale_factor" in file.metadata:
        merge = _positive(file, "projector.scale_factor")
    if tile // patch % merge:
        raise BadGguf(str(file.path), f"{tile // patch} patches of a side, {merge} to a row")
    least, most = _tiles(file) if is_internvl else (0, 0)
    return ProcessorConfig(
        kind=kind,
        tile=tile,
        longest_edge=_positive(file, "preproc_image_size", _MOST_PIXELS) if has_tiles else 0,
        splits=has_tiles or most > 1,
        least_tiles=least,
        most_tiles=most,
        has_class=is_internvl,
        resampling=_RESAMPLING[kind],
        patch=patch,
        merge=merge,
        mean=_colours(file, "image_mean"),
        std=_colours(file, "image_std"),
    )


def _tiles(file: GgufFile) -> tuple[int, int]:
    """Returns how few and how many tiles InternVL cuts a picture into."""
    least, most = (
        _positive(file, f"preproc_{kind}_tiles") if _has(file, f"preproc_{kind}_tiles") else usual
        for kind, usual in (("min", 1), ("max", 12))
    )
    if not least <= most <= _MOST_TILES:
        raise BadGguf(str(file.path), f"{least} to {most} tiles; there may be {_MOST_TILES}")
    return least, most


def _qwen_processor(file: GgufFile, pixels: tuple[int, int] = _QWEN_PIXELS) -> ProcessorConfig:
    """Reads the same of Qwen3-VL, whose pictures keep their shape."""
    patch = _positive(file, "patch_size", _MOST_PIXELS)
    merge = _positive(file, "spatial_merge_size") if _has(file, "spatial_merge_size") else 2
    least, most = (
        _positive(file, f"image_{kind}_pixels", _MOST_PIXELS * 1024)
        if _has(file, f"image_{kind}_pixels")
        else usual
        for kind, usual in zip(("min", "max"), pixels, strict=True)
    )
    if least > most:
        raise BadGguf(str(file.path), f"pictures of {least} to {most} pixels")
    return ProcessorConfig(
        kind=ProcessorKind.QWEN_VL,
        least_pixels=least,
        most_pixels=most,
        resampling=Resampling.BICUBIC,
        patch=patch,
        merge=merge,
        places=_positive(file, "image_size", _MOST_PIXELS) // patch,
        has_axes=True,
        mean=_colours(file, "image_mean"),
        std=_colours(file, "image_std"),
    )


def _pixtral_processor(file: GgufFile) -> ProcessorConfig:
    """Reads the same of Pixtral and Mistral 3."""
    found = ProcessorConfig(
        kind=ProcessorKind.PIXTRAL,
        longest_edge=_positive(file, "image_size", _MOST_PIXELS),
        resampling=Resampling.BICUBIC,
        patch=_positive(file, "patch_size", _MOST_PIXELS),
        merge=_positive(file, "spatial_merge_size") if _has(file, "spatial_merge_size") else 1,
        places=1,
        mean=_colours(file, "image_mean"),
        std=_colours(file, "image_std"),
    )
    if (most := found.most_patches) > _MOST_PIXELS:
        raise BadGguf(str(file.path), f"pictures of {most} patches; there may be {_MOST_PIXELS}")
    return found


def _qwen2_processor(file: GgufFile, architecture: str) -> ProcessorConfig:
    """Reads the same of Qwen2-VL and Qwen2.5-VL, whose towers have no table of places.

    That of Qwen2.5-VL has windows.
    """
    processor = msgspec.structs.replace(_qwen_processor(file, _QWEN2_PIXELS), places=1)
    if architecture == "qwen2vl-tower":
        return processor
    pixels = _positive(file, "window_size") if _has(file, "window_size") else _WINDOW
    window = pixels // (processor.patch * processor.merge)
    if not window:
        reason = f"windows of {pixels} pixels are less than a row of embeddings has"
        raise BadGguf(str(file.path), reason)
    return msgspec.structs.replace(processor, window=window)


def _has(file: GgufFile, key: str) -> bool:
    return _VISION + key in file.metadata


def _merging_layers(file: GgufFile, count: int) -> list[bool]:
    """Returns whether each layer makes rows for an inner layer of the model beside the tower."""
    flags = file.metadata.get(f"{_VISION}is_deepstack_layers")
    if flags is None:
        return [False] * count
    found = [bool(flag) for flag in flags] if isinstance(flags, np.ndarray | list) else []
    if len(found) != count:
        raise BadGguf(str(file.path), f"'{_VISION}is_deepstack_layers' is not of {count} layers")
    return found


def _activation(file: GgufFile, processor: ProcessorConfig) -> ActivationFunction:
    """Returns the activation of networks: as in llama.cpp, quick GELU where a file says none."""
    silu, gelu = (file.get_bool(f"clip.use_{name}", False) for name in ("silu", "gelu"))
    if silu and gelu:
        raise BadGguf(str(file.path), "both clip.use_silu and clip.use_gelu are set")
    if processor.window and not silu:
        raise UnsupportedArchitecture("such a tower without SiLU (clip.use_silu)", ("SiLU",))
    is_gated = processor.window > 0 or processor.kind is ProcessorKind.PIXTRAL
    if silu and not is_gated:
        raise UnsupportedArchitecture("such a tower with SiLU (clip.use_silu)", ("GELU",))
    if is_gated and not silu and not gelu:
        raise UnsupportedArchitecture("a tower without GELU (clip.use_gelu)", ("GELU", "SiLU"))
    if silu:
        return ActivationFunction.SILU
    exact = _GELUS.get(processor.kind, ActivationFunction.GELU_TANH)
    return exact if gelu else ActivationFunction.QUICK_GELU


def _network_size(file: GgufFile, hidden_size: int, architecture: str) -> int:
    """Returns the features between both matrices of a network.

    For Qwen2-VL, converters write some other number under that key, or 0.
    """
    first = file.tensors.get("v.blk.0.ffn_up.weight")
    if architecture == "qwen2vl-tower" and first is not None:
        return max(math.prod(first.shape) // hidden_size, 1)
    return _positive(file, "feed_forward_length")


def _config(
    file: GgufFile, processor: ProcessorConfig, embedding_size: int, of_qwen: str
) -> ModelConfig:
    activation = _activation(file, processor)
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
        intermediate_size=_network_size(file, hidden_size, of_qwen),
        joint_head_norms=processor.has_class and "v.blk.0.attn_q_norm.weight" in file.tensors,
    )
    count = _positive(file, "block_count", MAX_LAYERS)
    layers, make = (layer,) * count, siglip_config
    if processor.places and head % 4:
        raise BadGguf(str(file.path), f"{head} elements of a head do not rotate by axes")
    if processor.kind is ProcessorKind.PIXTRAL:
        make = pixtral_config
    if of_qwen:
        make = partial(qwen_tower_config, architecture=of_qwen)
        merged = hidden_size * processor.merge**2
        # The last of so many layers sees the whole tile.
        period = _positive(file, "n_wa_pattern", MAX_LAYERS) if processor.window else 1
        layers = tuple(
            replace(
                layer,
                merger_features=merged if merges else 0,
                tile_windows=(index + 1) % period > 0,
            )
            for index, merges in enumerate(_merging_layers(file, count))
        )
    return make(
        file.path.stem,
        processor,
        layers,
        hidden_size=hidden_size,
        embedding_size=embedding_size,
        norm_eps=eps,
        activation=activation,
    )


def _checkpoint(file: GgufFile, config: ModelConfig) -> Checkpoint:
    known = {place.path: place for place in places(config.num_layers)}
    weights: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        paths = _paths_of(name)
        if len(paths) > 1 and all(path in known for path in paths):
            weights |= cut_fused(config, tensor, [known[path] for path in paths])
        else:
            path = paths[0]
            weights[path] = as_declared(tensor, known[path]) if path in known else tensor
    if config.rope is not None and _SECOND_PICTURE in file.tensors:
        del weights[_paths_of(_SECOND_PICTURE)[0]]
        pictures = [file.tensors[name] for name in ("v.patch_embd.weight", _SECOND_PICTURE)]
        shape = config.hidden_size, config.patch_features
        weights["patches.matrix"] = Summed("v.patch_embd.weight, summed", pictures, shape)
    if config.architecture in PIXTRAL_TOWERS:
        weights.pop(_paths_of(_BREAK[1])[0], None)
        halves_of_heads(config, weights)
        merge_by_patch(config, weights)
    if config.architecture in WITHOUT_PLACES:
        without_places(config, weights)
    _exchange_networks(config, weights)
    if config.tower is not None and config.tower.averages:
        turn_projection(weights)
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


def _paths_of(name: str) -> tuple[str, ...]:
    """Returns our names of the weights in a tensor; one that is none is refused later."""
    if (match := _LAYER.fullmatch(name)) is not None:
        stem, part = f"layers.{int(match[2])}", match[3]
        bias = "_bias" if match[4] == "bias" else ""
        if match[1] == "deepstack" and part in _IN_MERGERS:
            return (f"{stem}.merger.{_IN_MERGERS[part]}{bias}",)
        if match[1] == "blk" and part == _QKV:
            return tuple(f"{stem}.attention.{each}{bias}" for each in "qkv")
        if match[1] == "blk" and part in _IN_LAYERS:
            return (f"{stem}.{_IN_LAYERS[part]}{bias}",)
    return (_OUTSIDE.get(name, f"no weight: {name}"),)


def _no_tokenizer() -> TokenizerData:
    raise BadTokenizer("A tower has no tokenizer: it reads images.")
