"""The encoders that are read from folders: what their `config.json` says.

Those of the BERT family that Transformers lacks, or had not at first, come with code of their own;
their keys and names are those of that code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.huggingface.config.decoders import activation, norm_eps, num_layers
from rocmforge.huggingface.config.heads import layer_flags, read_layer
from rocmforge.huggingface.config.rope import read_rope
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope_config import RopeConfig, RopeStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """The facts by which encoders differ, as their own readers find them."""

    architecture: str  # ours
    config: JsonObject  # with the keys of BERT
    eps: float
    act: ActivationFunction
    rope: RopeConfig | None = None
    local_rope: RopeConfig | None = None
    windows: tuple[int | None, ...] = ()  # empty: no layer has one
    first_position: int = 0  # row of the table of positions that position 0 has


def read_encoder(
    config: JsonObject, name: str, pooling: PoolingType, num_scores: int
) -> tuple[ModelConfig, int]:
    """Reads the configuration of an encoder whose `model_type` has a row.

    Args:
        config: Of the folder.
        name: What the model is called.
        pooling: What it was trained for.
        num_scores: Rows of its classification head; 0 for none.

    Returns:
        The configuration, and the row of the table of positions that position 0 has.

    Raises:
        UnsupportedArchitecture: It uses a feature that we do not have.
        BadFolder: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    shape = ENCODERS[config.get_str("model_type")](config)
    found, family = shape.config, FAMILIES[shape.architecture]
    layer = replace(
        read_layer(found),
        joint_head_norms=family.joint_head_norms,
        intermediate_size=found.get_positive("intermediate_size"),
    )
    hidden_size = found.get_positive("hidden_size")
    if {layer.query_features, layer.key_features} != {hidden_size}:
        raise _unsupported(config, "heads of their own size (num_key_value_heads, head_dim)")
    context = found.get_positive("max_position_embeddings") - shape.first_position
    if context < 1:
        raise found.bad("max_position_embeddings", "there is no position left for a token")
    has_types = "embedding.type" in family.may_have
    windows = shape.windows or (None,) * num_layers(found)
    model = ModelConfig(
        architecture=shape.architecture,
        name=name,
        causal=family.causal,
        hidden_size=hidden_size,
        vocab_size=found.get_positive("vocab_size"),
        num_token_types=found.get_positive("type_vocab_size", 2) if has_types else 0,
        max_context=context,
        layers=tuple(
            replace(layer, window=window, local_rope=window is not None) for window in windows
        ),
        norm=family.norm,
        norm_eps=shape.eps,
        pre_norm=family.pre_norm,
        rope=shape.rope,
        local_rope=shape.local_rope,
        has_alibi=family.has_alibi,
        activation=shape.act,
        pooling=pooling,
        num_scores=num_scores,
    )
    return model, shape.first_position


def _bert(config: JsonObject, *, starts_behind_padding: bool = False) -> EncoderShape:
    """Reads BERT; RoBERTa, whose positions begin behind that of padding; and Jina's encoders."""
    positions = config.get_str("position_embedding_type", "absolute")
    if positions not in ("absolute", "alibi"):
        raise _unsupported(config, f"positions of type {positions!r} (position_embedding_type)")
    for key in ("is_decoder", "add_cross_attention"):
        if config.get_bool(key, False):
            raise _unsupported(config, f"the part of a decoder ({key})")
    has_alibi = positions == "alibi"
    if has_alibi and (kind := config.get_str("feed_forward_type", "geglu")) != "geglu":
        raise _unsupported(config, f"a feed-forward network of type {kind!r} (feed_forward_type)")
    act = activation(config, "hidden_act", "gelu")
    if act is not ActivationFunction.GELU:
        raise _unsupported(config, "an activation other than gelu (hidden_act)")
    return EncoderShape(
        architecture="jina-bert-v2" if has_alibi else "bert",
        config=config,
        eps=norm_eps(config, "layer_norm_eps", 1e-12),
        act=act,
        first_position=config.get_int("pad_token_id", 1) + 1 if starts_behind_padding else 0,
    )


def _roberta(config: JsonObject) -> EncoderShape:
    return _bert(config, starts_behind_padding=True)


def _nomic(config: JsonObject) -> EncoderShape:
    """Reads NomicBERT: with the keys of Transformers, or those of its first code (GPT-2's)."""
    found = _first_nomic(config) if config.has("n_embd") else config
    act = activation(found, "hidden_act", "silu")
    rope = read_rope(
        found,
        style=RopeStyle.NEOX,
        head_dim=_head_dim(found),
        max_context=found.get_positive("max_position_embeddings", 2048),
        theta=1000.0,
    ).config
    if rope.scaling is not None or act is not ActivationFunction.SILU:
        raise _unsupported(config, "scaled frequencies, or an activation other than silu")
    return EncoderShape(
        architecture="nomic-bert",
        config=found,
        eps=norm_eps(found, "layer_norm_eps", 1e-12),
        act=act,
        rope=rope,
    )


def _first_nomic(config: JsonObject) -> JsonObject:
    """Returns the configuration in the keys of Transformers."""
    for key in ("prenorm", "causal", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"):
        if config.get_bool(key, False):
            raise _unsupported(config, f"{key}")
    if config.get_int("moe_every_n_layers", 0):
        raise _unsupported(config, "experts (moe_every_n_layers)")
    if (name := config.get_str("activation_function", "swiglu")) != "swiglu":
        raise _unsupported(config, f"the activation {name!r} (activation_function)")
    context = config.get_positive("n_positions", 2048)
    if config.has("rotary_scaling_factor"):  # of contexts beyond the trained one only
        context = min(context, config.get_positive("max_trained_positions", 2048))
    hidden_size, num_heads = config.get_positive("n_embd"), config.get_positive("n_head")
    head_dim, share = hidden_size // num_heads, config.get_float("rotary_emb_fraction", 1.0)
    rotary_dim = int(head_dim * share) if 0 < share <= 1 else 0
    if rotary_dim < 1 or rotary_dim % 2:
        raise config.bad("rotary_emb_fraction", f"{share} of {head_dim} cannot rotate")
    if (theta := config.get_float("rotary_emb_base", 10000.0)) <= 1:
        raise config.bad("rotary_emb_base", f"{theta} is not a rope base")
    return config.replaced(
        {
            "hidden_size": hidden_size,
            "num_hidden_layers": config.get_positive("n_layer"),
            "num_attention_heads": num_heads,
            "intermediate_size": config.get_positive("n_inner", 4 * hidden_size),
            "max_position_embeddings": context,
            "layer_norm_eps": norm_eps(config, "layer_norm_epsilon", 1e-12),
            "hidden_act": "silu",
            "rope_theta": theta,
            "partial_rotary_factor": share,
        },
        without=("rope_parameters", "rope_scaling"),
    )


def _modern(config: JsonObject) -> EncoderShape:
    """Reads ModernBERT (Warner et al. 2024, arXiv:2412.13663)."""
    count = num_layers(config)
    flags = layer_flags(config, count)
    if flags is None:
        period = config.get_positive("global_attn_every_n_layers", 3)
        flags = tuple(layer % period != 0 for layer in range(count))
    context = config.get_positive("max_position_embeddings", 8192)
    # `local_attention` counts the tokens to both sides; a window of ours, itself and one side.
    window = min(config.get_positive("local_attention", 128) // 2, context) + 1
    ropes = [
        _modern_rope(config, context, kind, config.get_float(key, theta))
        for kind, key, theta in (
            ("full_attention", "global_rope_theta", 160000.0),
            ("sliding_attention", "local_rope_theta", 10000.0),
        )
    ]
    return EncoderShape(
        architecture="modern-bert",
        config=config.with_defaults({"max_position_embeddings": context}),
        eps=norm_eps(config, "norm_eps", 1e-5),
        act=activation(config, "hidden_activation", "gelu"),
        rope=ropes[0],
        local_rope=ropes[1],
        windows=tuple(window if is_local else None for is_local in flags),
    )


def _modern_rope(config: JsonObject, context: int, kind: str, theta: float) -> RopeConfig:
    rope = read_rope(
        config,
        style=RopeStyle.NEOX,
        head_dim=_head_dim(config),
        max_context=context,
        theta=theta,
        kind=kind,
    ).config
    if rope.scaling is not None:
        raise _unsupported(config, "scaled frequencies (rope_parameters)")
    return rope


def _head_dim(config: JsonObject) -> int:
    return config.get_positive("hidden_size") // config.get_positive("num_attention_heads")


def _unsupported(config: JsonObject, feature: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{config.get_str('model_type')} with {feature}", tuple(sorted(ENCODERS))
    )


ENCODERS: Final[Mapping[str, Callable[[JsonObject], EncoderShape]]] = MappingProxyType(
    {
        "bert": _bert,
        "roberta": _roberta,
        "xlm-roberta": _roberta,
        "camembert": _roberta,
        "nomic_bert": _nomic,
        "modernbert": _modern,
    }
)
"""By `model_type`."""
