"""Tiny models of Gemma 4: recipes, and what the converter of llama.cpp calls their weights.

The seed of the one with experts is such that no token is near the border between two experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.data.models.text.tiny_model import Shapes, Tensors, TinyModel, plain_rope, tiny_config
from tests.support.files.gguf_writer import Value

_DIM: Final = 12
_FULL_DIM: Final = 20  # of heads in layers without a window
_WINDOW: Final = 7
_CAP: Final = 3.0  # of logits


def _config(kinds: str, **changes: Any) -> dict[str, Any]:
    return tiny_config(
        num_hidden_layers=len(kinds),
        layer_types=["full_attention" if kind == "f" else "sliding_attention" for kind in kinds],
        num_attention_heads=4,
        head_dim=_DIM,
        global_head_dim=_FULL_DIM,
        sliding_window=_WINDOW,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        vocab_size_per_layer_input=97,
        final_logit_softcapping=_CAP,
        rope_parameters={
            "sliding_attention": plain_rope(50.0),
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 5000.0,
            },
        },
        **{"hidden_size_per_layer_input": 0, **changes},
    )


def _keys(
    kinds: str, kv_heads: tuple[int, ...], changes: dict[str, Value] | None = None
) -> dict[str, Value]:
    return {
        "attention.key_length": _FULL_DIM,
        "attention.value_length": _FULL_DIM,
        "attention.key_length_swa": _DIM,
        "attention.value_length_swa": _DIM,
        "attention.head_count_kv": np.array(kv_heads, np.int32),
        "attention.sliding_window": _WINDOW,
        "attention.sliding_window_pattern": np.array([kind != "f" for kind in kinds]),
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "rope.freq_base": 5000.0,
        "rope.freq_base_swa": 50.0,
        "rope.dimension_count": _FULL_DIM,
        "rope.dimension_count_swa": _DIM,
        "final_logit_softcapping": _CAP,
        **(changes or {}),
    }


def gemma4_shapes(config: dict[str, Any]) -> Shapes:
    """The shapes of all weights, by Hugging Face's names."""
    dim, heads, vocab = config["hidden_size"], config["num_attention_heads"], config["vocab_size"]
    size = config.get("hidden_size_per_layer_input", 0)
    count = config["num_hidden_layers"]
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, dim)}
    if size:
        shapes["model.embed_tokens_per_layer.weight"] = (vocab, count * size)
        shapes["model.per_layer_model_projection.weight"] = (count * size, dim)
        shapes["model.per_layer_projection_norm.weight"] = (size,)
    first_shared = count - config.get("num_kv_shared_layers", 0)
    for index, kind in enumerate(config["layer_types"]):
        is_full, ffn = kind == "full_attention", config["intermediate_size"]
        head_dim, kv_heads = config["head_dim"], config["num_key_value_heads"]
        if is_full:
            head_dim = config["global_head_dim"]
            kv_heads = config.get("num_global_key_value_heads", kv_heads)
        layer: Shapes = {
            **dict.fromkeys(
                (
                    *("input_layernorm.weight", "post_attention_layernorm.weight"),
                    *("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"),
                ),
                (dim,),
            ),
            "self_attn.q_proj.weight": (heads * head_dim, dim),
            "self_attn.q_norm.weight": (head_dim,),
            "self_attn.o_proj.weight": (dim, heads * head_dim),
            "layer_scalar": (1,),
        }
        if index < first_shared:
            layer["self_attn.k_proj.weight"] = (kv_heads * head_dim, dim)
            layer["self_attn.k_norm.weight"] = (head_dim,)
            if not (is_full and config.get("attention_k_eq_v")):
                layer["self_attn.v_proj.weight"] = (kv_heads * head_dim, dim)
        elif config.get("use_double_wide_mlp"):
            ffn *= 2
        layer["mlp.gate_proj.weight"] = layer["mlp.up_proj.weight"] = (ffn, dim)
        layer["mlp.down_proj.weight"] = (dim, ffn)
        if config.get("enable_moe_block"):
            experts, inner = config["num_experts"], config["moe_intermediate_size"]
            layer["router.proj.weight"] = (experts, dim)
            layer["router.scale"] = (dim,)
            layer["router.per_expert_scale"] = (experts,)
            layer["experts.gate_up_proj"] = (experts, 2 * inner, dim)
            layer["experts.down_proj"] = (experts, dim, inner)
            for name in ("pre", "post"):
                layer[f"{name}_feedforward_layernorm_2.weight"] = (dim,)
            layer["post_feedforward_layernorm_1.weight"] = (dim,)
        if size:
            layer["per_layer_input_gate.weight"] = (size, dim)
            layer["per_layer_projection.weight"] = (dim, size)
            layer["post_per_layer_input_norm.weight"] = (dim,)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (dim,)}


def _model(name: str, seed: int, config: dict[str, Any], keys: dict[str, Value]) -> TinyModel:
    return TinyModel(
        name=name,
        architecture="gemma4",
        hf_class="Gemma4",
        seed=seed,
        config=config,
        keys=keys,
        shapes=gemma4_shapes(config),
        extra_tensors={"rope_freqs.weight": rope_divisors(_FULL_DIM)},
    )


def rope_divisors(head_dim: int) -> npt.NDArray[np.float32]:
    """Lets the first quarter of the pairs rotate, rounded down."""
    pairs = head_dim // 2
    return np.where(np.arange(pairs) < pairs // 4, 1.0, 1e30).astype(np.float32)


def sized_gemma4(model: TinyModel, **sizes: int) -> TinyModel:
    """The same model, or its first layers, in other sizes, given as in its configuration."""
    config, keys = model.config | sizes, dict(model.keys)
    layers = config["num_hidden_layers"]
    gone = len(config["layer_types"]) - layers
    config["layer_types"] = config["layer_types"][:layers]
    shared = max(0, config.get("num_kv_shared_layers", 0) - gone)
    config["num_kv_shared_layers"] = keys["attention.shared_kv_layers"] = shared
    keys |= {key: value[:layers] for key, value in keys.items() if isinstance(value, np.ndarray)}
    full, dim, inner = config["global_head_dim"], config["head_dim"], config["intermediate_size"]
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        keys |= {name: full, f"{name}_swa": dim}
    widths = keys.get("feed_forward_length")
    if isinstance(widths, np.ndarray):
        keys["feed_forward_length"] = widths // widths[0] * inner
    renamed = {
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "expert_feed_forward_length": "moe_intermediate_size",
    }
    keys |= {ours: config[theirs] for ours, theirs in renamed.items() if ours in keys}
    return replace(
        model,
        config=config,
        keys=keys,
        shapes=gemma4_shapes(config),
        extra_tensors={"rope_freqs.weight": rope_divisors(full)},
    )


GEMMA4_MODELS: Final = (
    _model(
        "gemma4",
        60,
        _config(
            "ssfsf",
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
        ),
        _keys("ssfsf", (2, 2, 1, 2, 1)),
    ),
    _model(
        "gemma4-e",
        61,
        _config(
            "ssfssf",
            num_key_value_heads=1,
            num_kv_shared_layers=3,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=8,
        ),
        _keys(
            "ssfssf",
            (1,) * 6,
            {
                "attention.shared_kv_layers": 3,
                "embedding_length_per_layer_input": 8,
                "feed_forward_length": np.array([72] * 3 + [144] * 3, np.int32),
            },
        ),
    ),
    _model(
        "gemma4-moe",
        62,
        _config(
            "ssf",
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            enable_moe_block=True,
            num_experts=8,
            top_k_experts=3,
            moe_intermediate_size=40,
        ),
        _keys(
            "ssf",
            (2, 2, 1),
            {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 40},
        ),
    ),
)


def gemma4_tensors(weights: Tensors) -> Tensors:
    """The weights by names that the `gguf` package knows, or by GGUF's own."""
    renamed = {
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
    }
    found: Tensors = {}
    for name, weight in weights.items():
        for theirs, ours in renamed.items():
            if name.endswith(theirs):
                found[f"blk.{name.split('.')[2]}.{ours}"] = weight
                break
        else:
            suffix = "" if name.endswith((".weight", ".bias")) else ".weight"
            found[name + suffix] = weight
    return found
