"""Tiny models with Mamba-2: recipes, and how the converter of llama.cpp changes their weights.

The seeds of those with experts are such that no token is near the border between two experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tests.data.models.text.tiny_model import Shapes, Tensors, TinyModel, plain_rope, tiny_config
from tests.support.files.gguf_writer import Value

_WIDTH = 4


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Those of Mamba-2 in a model. llama.cpp insists on inner features of twice the hidden size."""

    heads: int = 6
    head_dim: int = 16
    state: int = 16
    groups: int = 2

    @classmethod
    def of(cls, config: dict[str, Any]) -> _Sizes:
        is_granite = "mamba_n_heads" in config
        keys = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups")
        if not is_granite:
            keys = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")
        heads, head_dim, state, groups = (config[key] for key in keys)
        return cls(heads=heads, head_dim=head_dim, state=state, groups=groups)

    @property
    def granite(self) -> dict[str, Any]:
        sizes = {"mamba_n_heads": self.heads, "mamba_d_head": self.head_dim}
        return {**sizes, "mamba_d_state": self.state, "mamba_n_groups": self.groups}

    @property
    def nemotron(self) -> dict[str, Any]:
        sizes = {"mamba_num_heads": self.heads, "mamba_head_dim": self.head_dim}
        return {**sizes, "ssm_state_size": self.state, "n_groups": self.groups}

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> dict[str, Value]:
        return {
            "ssm.conv_kernel": _WIDTH,
            "ssm.state_size": self.state,
            "ssm.group_count": self.groups,
            "ssm.time_step_rank": self.heads,
            "ssm.inner_size": self.inner,
        }

    def shapes(self, dim: int) -> Shapes:
        heads, inner, mixed = self.heads, self.inner, self.inner + 2 * self.groups * self.state
        return {
            "in_proj.weight": (inner + mixed + heads, dim),
            "conv1d.weight": (mixed, 1, _WIDTH),
            "conv1d.bias": (mixed,),
            "A_log": (heads,),
            "D": (heads,),
            "dt_bias": (heads,),
            "norm.weight": (inner,),
            "out_proj.weight": (dim, inner),
        }


def _attention_shapes(config: dict[str, Any]) -> Shapes:
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", dim // heads)
    kv = config["num_key_value_heads"] * head_dim
    return {
        "q_proj.weight": (heads * head_dim, dim),
        "k_proj.weight": (kv, dim),
        "v_proj.weight": (kv, dim),
        "o_proj.weight": (dim, heads * head_dim),
    }


def _granite_config(*kinds: str, **changes: Any) -> dict[str, Any]:
    return tiny_config(
        num_hidden_layers=len(kinds),
        layer_types=[f"{kind}_attention" for kind in kinds],
        max_position_embeddings=1024,
        mamba_d_conv=_WIDTH,
        mamba_expand=2,
        mamba_chunk_size=32,
        embedding_multiplier=6.0,
        residual_multiplier=0.4,
        attention_multiplier=0.25,
        logits_scaling=1.5,
        **_Sizes().granite,
        **changes,
    )


def _granite_shapes(config: dict[str, Any]) -> Shapes:
    dim, shared = config["hidden_size"], config["shared_intermediate_size"]
    experts, size = config["num_local_experts"], config["intermediate_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], dim)}
    for index, kind in enumerate(config["layer_types"]):
        layer: Shapes = {
            "input_layernorm.weight": (dim,),
            "post_attention_layernorm.weight": (dim,),
            "shared_mlp.input_linear.weight": (2 * shared, dim),
            "shared_mlp.output_linear.weight": (dim, shared),
        }
        if kind == "full_attention":
            own = _attention_shapes(config)
            layer |= {f"self_attn.{name}": shape for name, shape in own.items()}
        else:
            layer |= {
                f"mamba.{name}": shape for name, shape in _Sizes.of(config).shapes(dim).items()
            }
        if experts:
            layer["block_sparse_moe.router.layer.weight"] = (experts, dim)
            layer["block_sparse_moe.input_linear.weight"] = (experts, 2 * size, dim)
            layer["block_sparse_moe.output_linear.weight"] = (experts, dim, size)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (dim,)
    if config["tie_word_embeddings"]:
        return shapes
    return shapes | {"lm_head.weight": (config["vocab_size"], dim)}


def _granite_keys(config: dict[str, Any]) -> dict[str, Value]:
    kinds = config["layer_types"]
    kv = [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds]
    return _Sizes.of(config).keys | {
        "attention.head_count_kv": np.array(kv, np.int32),
        "attention.scale": 0.25,
        "embedding_scale": 6.0,
        "residual_scale": 0.4,
        "logit_scale": 1.5,
        "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"],
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
    }


def _nemotron_config(*kinds: str, **changes: Any) -> dict[str, Any]:
    config = tiny_config(
        layers_block_type=[*kinds],
        num_hidden_layers=len(kinds),
        head_dim=12,
        max_position_embeddings=1024,
        layer_norm_epsilon=1e-5,
        conv_kernel=_WIDTH,
        expand=2,
        chunk_size=32,
        **_Sizes().nemotron,
        **changes,
    )
    del config["rms_norm_eps"]
    return config


def _nemotron_shapes(config: dict[str, Any]) -> Shapes:
    dim = config["hidden_size"]
    shapes: Shapes = {"backbone.embeddings.weight": (config["vocab_size"], dim)}
    for index, kind in enumerate(config["layers_block_type"]):
        stem = f"backbone.layers.{index}"
        shapes[f"{stem}.norm.weight"] = (dim,)
        own: Shapes = {
            "linear_attention": lambda: _Sizes.of(config).shapes(dim),
            "full_attention": lambda: _attention_shapes(config),
            "mlp": lambda: _ungated_shapes(dim, config["intermediate_size"]),
            "moe": lambda: _nemotron_experts(config),
        }[kind]()
        shapes |= {f"{stem}.mixer.{name}": shape for name, shape in own.items()}
    shapes["backbone.norm_f.weight"] = (dim,)
    return shapes | {"lm_head.weight": (config["vocab_size"], dim)}


def _ungated_shapes(dim: int, size: int) -> Shapes:
    return {"up_proj.weight": (size, dim), "down_proj.weight": (dim, size)}


def _nemotron_experts(config: dict[str, Any]) -> Shapes:
    dim, count = config["hidden_size"], config["n_routed_experts"]
    shapes: Shapes = {"gate.weight": (count, dim), "gate.e_score_correction_bias": (count,)}
    networks = {f"experts.{n}": config["moe_intermediate_size"] for n in range(count)}
    networks["shared_experts"] = config["moe_shared_expert_intermediate_size"]
    latent = config.get("moe_latent_size")
    if latent:
        shapes |= {"fc1_latent_proj.weight": (latent, dim), "fc2_latent_proj.weight": (dim, latent)}
    for stem, size in networks.items():
        features = latent if latent and stem != "shared_experts" else dim
        of_network = _ungated_shapes(features, size)
        shapes |= {f"{stem}.{name}": shape for name, shape in of_network.items()}
    return shapes


def _nemotron_keys(config: dict[str, Any]) -> dict[str, Value]:
    kinds, kv = config["layers_block_type"], config["num_key_value_heads"]
    size = config.get("moe_intermediate_size", config["intermediate_size"])
    heads = [kv if kind == "full_attention" else 0 for kind in kinds]
    sizes = [size if kind in ("mlp", "moe") else 0 for kind in kinds]
    return _Sizes.of(config).keys | {
        "attention.head_count_kv": np.array(heads, np.int32),
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_epsilon": 1e-5,
        "feed_forward_length": np.array(sizes, np.int32),
    }


_GRANITE: Final = _granite_config(
    *("linear", "full", "linear"),
    intermediate_size=40,
    shared_intermediate_size=56,
    num_local_experts=8,
    num_experts_per_tok=3,
    tie_word_embeddings=True,
)
_GRANITE_DENSE: Final = _granite_config(
    *("linear", "linear", "full"),
    intermediate_size=72,
    shared_intermediate_size=72,
    num_local_experts=0,
    num_experts_per_tok=0,
    position_embedding_type="rope",
    rope_parameters=plain_rope(300.0),
)
_NEMOTRON: Final = _nemotron_config(
    "linear_attention", "mlp", "linear_attention", "full_attention", "mlp"
)
_NEMOTRON_MOE: Final = _nemotron_config(
    *("linear_attention", "moe", "full_attention", "moe", "linear_attention"),
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=1,
    moe_intermediate_size=40,
    moe_shared_expert_intermediate_size=56,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
)

_NEMOTRON_LATENT: Final = _NEMOTRON_MOE | {"moe_latent_size": 24}
_NEMOTRON_KEYS: Final[dict[str, Value]] = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 40,
    "expert_shared_feed_forward_length": 56,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_group_count": 1,
}

MAMBA_MODELS: Final = (
    TinyModel(
        name="granitehybrid",
        architecture="granitehybrid",
        hf_class="GraniteMoeHybrid",
        seed=211,
        config=_GRANITE,
        shapes=_granite_shapes(_GRANITE),
        keys=_granite_keys(_GRANITE)
        | {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_feed_forward_length": 56,
        },
    ),
    TinyModel(
        name="granitehybrid-dense",
        architecture="granitehybrid",
        hf_class="GraniteMoeHybrid",
        seed=212,
        config=_GRANITE_DENSE,
        shapes=_granite_shapes(_GRANITE_DENSE),
        keys=_granite_keys(_GRANITE_DENSE) | {"rope.freq_base": 300.0},
    ),
    TinyModel(
        name="nemotron_h",
        architecture="nemotron_h",
        hf_class="NemotronH",
        seed=213,
        config=_NEMOTRON,
        shapes=_nemotron_shapes(_NEMOTRON),
        keys=_nemotron_keys(_NEMOTRON),
    ),
    TinyModel(
        name="nemotron_h_moe",
        architecture="nemotron_h_moe",
        hf_class="NemotronH",
        seed=214,
        config=_NEMOTRON_MOE,
        shapes=_nemotron_shapes(_NEMOTRON_MOE),
        keys=_nemotron_keys(_NEMOTRON_MOE) | _NEMOTRON_KEYS,
    ),
    TinyModel(
        name="nemotron_h_moe-latent",
        architecture="nemotron_h_moe",
        hf_class="NemotronH",
        seed=215,
        config=_NEMOTRON_LATENT,
        shapes=_nemotron_shapes(_NEMOTRON_LATENT),
        keys=_nemotron_keys(_NEMOTRON_LATENT) | _NEMOTRON_KEYS | {"moe_latent_size": 24},
    ),
)


MAMBA_CLASSES: Final = frozenset(model.hf_class for model in MAMBA_MODELS)


def larger_mamba(
    model: TinyModel, state: int = 32, groups: int = 2, num_heads: int | None = None, **changes: int
) -> TinyModel:
    """One in sizes that a GPU has kernels for; those of 128 elements in a state go by chunks.

    `changes` are of what both kinds of models have.

    Its seed keeps routers away from borders in these sizes, too: scores of experts that are chosen
    and of others are 0.02 apart.
    """
    heads, head_dim = (4, 64) if state == 128 else (8, 32)
    heads = num_heads or heads
    sizes = _Sizes(heads=heads, head_dim=head_dim, state=state, groups=groups)
    config = model.config | {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 96,
        **changes,
    }
    shared = config["intermediate_size"]
    if model.hf_class == "NemotronH":
        config |= sizes.nemotron | {"head_dim": 64}
        if "n_routed_experts" in config:
            config |= {"moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": shared}
        if "moe_latent_size" in config:
            config |= {"moe_latent_size": 64}
        keys, shapes = _nemotron_keys(config), _nemotron_shapes(config)
    else:
        config |= sizes.granite | {"shared_intermediate_size": shared}
        if config["num_local_experts"]:
            config |= {"intermediate_size": 64}
        keys, shapes = _granite_keys(config), _granite_shapes(config)
    if "expert_count" in model.keys:
        keys |= {"expert_feed_forward_length": 64, "expert_shared_feed_forward_length": shared}
    if "moe_latent_size" in model.keys:
        keys |= {"moe_latent_size": 64}
    seed = 308 if model.name == "granitehybrid" else model.seed
    return replace(model, config=config, keys=model.keys | keys, shapes=shapes, seed=seed)


def mamba_tensors(model: TinyModel, weights: Tensors) -> Tensors:
    """The weights as the converter of llama.cpp has them, still by Hugging Face's names."""
    found: Tensors = {}
    shared = "mlp.shared_expert" if model.config.get("num_local_experts") else "mlp"
    for name, weight in weights.items():
        stem = name.rpartition(".mixer.")[0] or name.rpartition(".mamba.")[0]
        if name.endswith("conv1d.weight"):
            weight = np.squeeze(weight, 1)
        elif name.endswith("A_log"):
            weight = -np.exp(weight)[:, None]
        elif name.endswith(".D"):
            weight = weight[:, None]
        elif stem and name.endswith(".norm.weight"):
            weight = weight.reshape(_Sizes.of(model.config).groups, -1)
        name = name.replace(".dt_bias", ".dt_proj.bias")
        name = name.replace("mixer.experts.", "mlp.experts.")
        if "mlp.experts." in name:
            name = name.replace("backbone", "model")
        if name.endswith("_linear.weight") and "router" not in name:
            layer, _, part = name.rpartition("shared_mlp." if "shared_mlp" in name else "block_")
            ours = f"{layer}{shared}" if "shared_mlp" in name else f"{layer}mlp.experts"
            if part.endswith("output_linear.weight"):
                found[f"{ours}.down_proj.weight"] = weight
                continue
            gate, up = np.split(weight, 2, axis=-2)
            found[f"{ours}.gate_proj.weight"], found[f"{ours}.up_proj.weight"] = gate, up
        else:
            found[name] = weight
    return found
