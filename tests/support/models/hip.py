"""The HIP backend under test: its platform, its kernels, and tiny models that its kernels fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pytest

from kernels.build import LIB_DIR, build
from kernels.compiler import find_compiler
from kernels.table import TranslationUnit, read_formats
from kernels.targets import select
from rocmforge_hip.device.platform import VARIABLE
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_experts import LATENT_CLASSES
from tests.data.models.text.tiny_gemma4 import GEMMA4_MODELS, sized_gemma4
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import DENSE_MODELS, SCALED_MODELS
from tests.support.files.gguf_writer import Stored, write_gguf
from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.kernels import PlatformOptions
from tests.support.operands.weights import ggml_type, random_matrix

HEAD_DIM: Final = 64
WATCHED: Final = 2
"""Launches of a kernel in a shape: whole models repeat them, and tests/kernels look at all."""
NO_OTHERS: Final[Mapping[str, str]] = MappingProxyType({})
_OF_FORMATS: Final = ("gemm", "gemv", "experts_gemv")
_EXPERT_SIZES: Final = ("moe_intermediate_size", "shared_expert_intermediate_size")
# In these sizes, too, no token shall be near the border between two experts: 0.003 at least.
_SEEDS: Final = {"olmoe": 130, "hunyuan-moe": 146, "qwen3moe": 132}
_EXPERT_KEYS: Final = ("expert_feed_forward_length", "expert_shared_feed_forward_length")
# Halves for queries, keys and values, and for activations of prefills.
FLOAT_MODELS: Final = tuple(model.name for model in (*DENSE_MODELS, *SCALED_MODELS, *GEMMA4_MODELS))


def platform_options(request: pytest.FixtureRequest) -> PlatformOptions:
    """What the command line of pytest says."""
    formats = request.config.getoption("--matrix-formats")
    return PlatformOptions(
        platform=request.config.getoption("--platform"),
        wave=request.config.getoption("--wave"),
        lane_order=request.config.getoption("--lane-order"),
        matrix_formats=frozenset(formats.split(",")) if formats else None,
    )


@contextmanager
def started_platform(
    options: PlatformOptions, *, watched: int = WATCHED
) -> Iterator[HostPlatform | None]:
    """Makes the backend use this platform; the host's kernels are compiled if need be.

    Args:
        options: Say which.
        watched: See `HostPlatform.watching`; 0 = all launches.

    Yields:
        The checking library, if it is the host.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, options.platform)
        if options.platform != "host":
            yield None
            return
        _build(f"host-w{options.wave}", options.matrix_formats)
        host = HostPlatform.start(options)
        with host.watching(watched):
            yield host


@cache
def _build(target: str, matrix_formats: frozenset[str] | None) -> None:
    """Compiles the kernels, or finds out, once a process, that they are as they should be."""
    others = {format.name for format in read_formats()} - (matrix_formats or set())

    def wanted(unit: TranslationUnit) -> bool:
        matrices, _, format = unit.name.partition("-")
        return matrix_formats is None or matrices not in _OF_FORMATS or format not in others

    build(select(target), find_compiler(None), lib=LIB_DIR, wanted=wanted)


def fitting(model: TinyModel) -> TinyModel:
    """The same architecture in sizes that there are kernels for."""
    if model.hf_class in LATENT_CLASSES:
        return _fitting_latent(model)
    if model.architecture == "gemma4":
        return _fitting_gemma4(model)
    scale = HEAD_DIM / model.head_dim
    keys = dict(model.keys)
    keys["attention.key_length"] = keys["attention.value_length"] = HEAD_DIM
    rotated = keys.get("rope.dimension_count")
    if isinstance(rotated, int):
        keys["rope.dimension_count"] = int(rotated * scale)
    factors = {
        name: np.linspace(1.0, 3.0, int(len(values) * scale), dtype=np.float32)
        for name, values in model.extra_tensors.items()
    }
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": HEAD_DIM}
    sizes |= {size: 64 for size in _EXPERT_SIZES if size in model.config}
    keys |= {key: 64 for key in _EXPERT_KEYS if key in keys and model.architecture != "gpt-oss"}
    return replace(
        model,
        config=model.config | sizes,
        keys=keys,
        extra_tensors=factors,
        seed=_SEEDS.get(model.name, model.seed),
    )


def _fitting_gemma4(model: TinyModel) -> TinyModel:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": HEAD_DIM}
    full = 512
    if model.config["hidden_size_per_layer_input"]:
        sizes["hidden_size_per_layer_input"], full = 32, 128
    if "moe_intermediate_size" in model.config:
        sizes["moe_intermediate_size"] = 64
    return sized_gemma4(model, **sizes, global_head_dim=full)


def _fitting_latent(model: TinyModel) -> TinyModel:
    keys, config = dict(model.keys), dict(model.config)
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32}
    if config["q_lora_rank"] is not None:
        sizes["q_lora_rank"] = keys["attention.q_lora_rank"] = 32
    keys |= {
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 96,
        "attention.value_length_mla": 32,
        "rope.dimension_count": 64,
        "expert_feed_forward_length": 64,
    }
    sizes |= {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64}
    return replace(model, config=config | sizes, keys=keys)


def splittable(model: TinyModel) -> TinyModel:
    """A model of these that can be split over two devices: an even vocabulary and so on."""
    sizes = {"vocab_size": 96, "intermediate_size": 128, "num_key_value_heads": 2}
    keys = model.keys
    if model.hf_class == "GptOss":  # whose networks are all experts
        keys = keys | {"expert_feed_forward_length": sizes["intermediate_size"]}
    return replace(model, config=model.config | sizes, keys=keys)


def quantized(model: TinyModel, type_name: str) -> TinyModel:
    """A model whose matrices are 256 wide, as the K-quants need."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    fitted = fitting(model)
    if model.architecture == "gemma4":
        if model.config["hidden_size_per_layer_input"]:
            sizes["hidden_size_per_layer_input"] = 256
        return replace(sized_gemma4(fitted, **sizes), name=f"{model.name}-{type_name}")
    if model.hf_class in LATENT_CLASSES:  # results of heads, and where queries come from
        sizes["v_head_dim"] = 64
        keys = fitted.keys | {"attention.value_length_mla": 64}
        if fitted.config["q_lora_rank"] is not None:
            sizes["q_lora_rank"] = 256
            keys = keys | {"attention.q_lora_rank": 256}
        fitted = replace(fitted, keys=keys)
    return replace(fitted, name=f"{model.name}-{type_name}", config=fitted.config | sizes)


def write_quantized(
    model: TinyModel, type_name: str, folder: Path, others: Mapping[str, str] = NO_OTHERS
) -> Path:
    """Writes the model with random matrices of this stored type.

    `others` are the types of tensors whose names hold a word; those of experts are floats else.
    """
    rng = np.random.default_rng(5)
    tensors: dict[str, Any] = {}
    for name, values in gguf_tensors(model).items():
        own = next((others[word] for word in others if word in name), None)
        stored = own or type_name
        tensors[name] = (
            values
            if values.ndim < 2 or stored == "f32" or (values.ndim > 2 and own is None)
            else Stored(_matrix(rng, stored, values.shape), ggml_type(stored))
        )
    return write_gguf(folder / f"{model.name}.gguf", gguf_metadata(model), tensors)


def _matrix(rng: np.random.Generator, type_name: str, shape: tuple[int, ...]) -> Any:
    *rows, columns = shape
    magnitude = 0.5 / np.sqrt(columns)
    raw = random_matrix(rng, type_name, math.prod(rows), columns, magnitude=magnitude).raw
    return raw.reshape(*rows, -1)
