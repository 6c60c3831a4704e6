"""Names of tensors of towers in folders, and our names of the weights that they hold."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rocmforge.huggingface.name_table import NameTable, weights_and_biases
from rocmforge.models.config import ModelConfig
from rocmforge.models.vision.towers import GEMMA4_UNIFIED as GEMMA4_UNIFIED_TOWER
from rocmforge.models.vision.towers import PIXTRAL_TOWERS

SIGLIP: Final = NameTable(
    # Of SmolVLM, then of Gemma 3, which has had each of these.
    prefixes=(
        "model.vision_model.",
        "model.vision_tower.vision_model.",
        "model.vision_tower.",
        "vision_tower.vision_model.",
        "vision_tower.",
    ),
    layer=re.compile(r"encoder\.layers\.(\d{1,4})\."),
    parts=MappingProxyType(
        weights_and_biases(
            ("self_attn.q_proj", "attention.q"),
            ("self_attn.k_proj", "attention.k"),
            ("self_attn.v_proj", "attention.v"),
            ("self_attn.out_proj", "attention.output"),
            ("layer_norm1", "attention_norm"),
            ("layer_norm2", "feed_forward_norm"),
            ("mlp.fc1", "feed_forward.up"),
            ("mlp.fc2", "feed_forward.down"),
        )
    ),
    model=MappingProxyType(
        {
            "embeddings.patch_embedding.weight": "patches.matrix",
            "embeddings.patch_embedding.bias": "patches.bias",
            "embeddings.position_embedding.weight": "embedding.token",
            "post_layernorm.weight": "output_norm",
            "post_layernorm.bias": "output_norm_bias",
            "model.connector.modality_projection.proj.weight": "projector.matrix",
            **{
                f"{prefix}multi_modal_projector.{name}": ours
                for prefix in ("model.", "")
                for name, ours in (
                    ("mm_input_projection_weight", "projector.matrix"),
                    ("mm_soft_emb_norm.weight", "projector.norm"),
                )
            },
        }
    ),
    # The model beside it, and what makes one vector of an image.
    left_out=re.compile(
        r"^(model\.)?(text_model|language_model)\.|^lm_head\.|position_ids$"
        r"|^(model\.)?vision_tower\.(vision_model\.)?head\."
    ),
)
"""A tower of the kind of SigLIP."""


def _merger(name: str, parts: str) -> tuple[tuple[str, str], ...]:
    """Returns the rows of a projector of Qwen's."""
    return (
        (f"{name}linear_fc1", f"{parts}.inner"),
        (f"{name}linear_fc2", f"{parts}.matrix"),
    )


QWEN: Final = NameTable(
    prefixes=("model.visual.", "visual."),
    layer=re.compile(r"blocks\.(\d{1,4})\."),
    parts=MappingProxyType(
        {
            **weights_and_biases(
                ("attn.proj", "attention.output"),
                ("norm1", "attention_norm"),
                ("norm2", "feed_forward_norm"),
                ("mlp.linear_fc1", "feed_forward.up"),
                ("mlp.linear_fc2", "feed_forward.down"),
            ),
            "attn.qkv.weight": ("attention.q", "attention.k", "attention.v"),
            "attn.qkv.bias": ("attention.q_bias", "attention.k_bias", "attention.v_bias"),
        }
    ),
    model=MappingProxyType(
        {
            "patch_embed.proj.weight": "patches.matrix",
            "patch_embed.proj.bias": "patches.bias",
            "pos_embed.weight": "embedding.token",
            "merger.norm.weight": "output_norm",
            "merger.norm.bias": "output_norm_bias",
            **{
                theirs: ours
                for theirs, (ours,) in weights_and_biases(*_merger("merger.", "projector")).items()
            },
        }
    ),
    left_out=re.compile(
        r"^(model\.)?(language_model|layers|embed_tokens|norm)\.|^lm_head\.|^mtp\."
    ),
)
"""A tower of Qwen3-VL or Qwen 3.5, without the projectors of its inner layers."""


PIXTRAL: Final = NameTable(
    prefixes=("model.vision_tower.", "vision_tower."),
    layer=re.compile(r"transformer\.layers\.(\d{1,4})\."),
    parts=MappingProxyType(
        weights_and_biases(
            ("attention.q_proj", "attention.q"),
            ("attention.k_proj", "attention.k"),
            ("attention.v_proj", "attention.v"),
            ("attention.o_proj", "attention.output"),
            ("attention_norm", "attention_norm"),
            ("ffn_norm", "feed_forward_norm"),
            ("feed_forward.gate_proj", "feed_forward.gate"),
            ("feed_forward.up_proj", "feed_forward.up"),
            ("feed_forward.down_proj", "feed_forward.down"),
            bias=False,
        )
    ),
    model=MappingProxyType(
        {
            "patch_conv.weight": "patches.matrix",
            "ln_pre.weight": "embedding.norm",
            **{
                f"{prefix}multi_modal_projector.{name}": ours
                for prefix in ("model.", "")
                for name, ours in (
                    ("norm.weight", "output_norm"),
                    ("patch_merger.merging_layer.weight", "projector.merger"),
                    ("linear_1.weight", "projector.inner"),
                    ("linear_1.bias", "projector.inner_bias"),
                    ("linear_2.weight", "projector.matrix"),
                    ("linear_2.bias", "projector.matrix_bias"),
                )
            },
        }
    ),
    left_out=re.compile(r"^(model\.)?language_model\.|^lm_head\."),
)
"""A tower of Pixtral or of Mistral 3."""

GEMMA4: Final = NameTable(
    prefixes=("model.vision_tower.", "vision_tower."),
    layer=re.compile(r"encoder\.layers\.(\d{1,4})\."),
    parts=MappingProxyType(
        weights_and_biases(
            ("self_attn.q_proj.linear", "attention.q"),
            ("self_attn.k_proj.linear", "attention.k"),
            ("self_attn.v_proj.linear", "attention.v"),
            ("self_attn.o_proj.linear", "attention.output"),
            ("self_attn.q_norm", "attention.q_norm"),
            ("self_attn.k_norm", "attention.k_norm"),
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "attention_post_norm"),
            ("pre_feedforward_layernorm", "feed_forward_norm"),
            ("post_feedforward_layernorm", "feed_forward_post_norm"),
            ("mlp.gate_proj.linear", "feed_forward.gate"),
            ("mlp.up_proj.linear", "feed_forward.up"),
            ("mlp.down_proj.linear", "feed_forward.down"),
            bias=False,
        )
        # Those of each product are one tensor: see `join_bounds`.
        | {
            f"{theirs}_proj.input_min": (f"{ours}_bounds",)
            for theirs, ours in (
                *((f"self_attn.{part}", f"attention.{part}") for part in "qkv"),
                ("self_attn.o", "attention.output"),
                *((f"mlp.{part}", f"feed_forward.{part}") for part in ("gate", "up", "down")),
            )
        }
    ),
    model=MappingProxyType(
        {
            "patch_embedder.input_proj.weight": "patches.matrix",
            "patch_embedder.position_embedding_table": "embedding.token",
            "std_bias": "projector.shift",
            "std_scale": "projector.scale",
            **dict.fromkeys(
                (f"{prefix}embed_vision.embedding_projection.weight" for prefix in ("model.", "")),
                "projector.matrix",
            ),
        }
    ),
    # The model beside it, and what reads sound.
    left_out=re.compile(r"^(model\.)?(language_model|audio_tower|embed_audio)\.|^lm_head\."),
)
"""A tower of Gemma 4."""

_ENDS: Final = (("weight", ""), ("bias", "_bias"))
GEMMA4_UNIFIED: Final = NameTable(
    prefixes=("model.",),
    layer=re.compile(r"(?!)(.)"),  # there are none
    parts=MappingProxyType({}),
    model=MappingProxyType(
        {
            f"{prefix}{theirs}": ours
            for prefix in ("vision_embedder.", "embed_vision.")  # as published, and Transformers'
            for theirs, ours in (
                *((f"patch_ln1.{end}", f"patches.norm{our_end}") for end, our_end in _ENDS),
                *((f"patch_ln2.{end}", f"patches.output_norm{our_end}") for end, our_end in _ENDS),
                *((f"pos_norm.{end}", f"output_norm{our_end}") for end, our_end in _ENDS),
                ("patch_dense.weight", "patches.matrix"),
                ("patch_dense.bias", "patches.bias"),
                ("pos_embedding", "embedding.token"),
            )
        }
        | {
            "embed_vision.embedding_projection.weight": "projector.matrix",
            "embed_vision.multimodal_embedder.embedding_projection.weight": "projector.matrix",
        }
    ),
    # The model beside it, and what reads sound.
    left_out=re.compile(r"^(model\.)?(language_model|embed_audio)\.|^lm_head\."),
)
"""A tower of Gemma 4 12B."""

INTERNVL: Final = NameTable(
    prefixes=("model.vision_tower.", "vision_tower."),
    layer=re.compile(r"encoder\.layer\.(\d{1,4})\."),
    parts=MappingProxyType(
        {
            **weights_and_biases(
                ("attention.q_proj", "attention.q"),
                ("attention.k_proj", "attention.k"),
                ("attention.v_proj", "attention.v"),
                ("attention.projection_layer", "attention.output"),
                ("attention.q_norm", "attention.q_norm"),
                ("attention.k_norm", "attention.k_norm"),
                ("layernorm_before", "attention_norm"),
                ("layernorm_after", "feed_forward_norm"),
                ("mlp.fc1", "feed_forward.up"),
                ("mlp.fc2", "feed_forward.down"),
            ),
            "lambda_1": ("attention_scale",),
            "lambda_2": ("feed_forward_scale",),
        }
    ),
    model=MappingProxyType(
        {
            "embeddings.cls_token": "embedding.class_token",
            "embeddings.position_embeddings": "embedding.token",
            "embeddings.patch_embeddings.projection.weight": "patches.matrix",
            "embeddings.patch_embeddings.projection.bias": "patches.bias",
            **{
                f"{prefix}multi_modal_projector.{theirs}": ours
                for prefix in ("model.", "")
                for theirs, (ours,) in weights_and_biases(
                    ("layer_norm", "projector.row_norm"),
                    ("linear_1", "projector.inner"),
                    ("linear_2", "projector.matrix"),
                ).items()
            },
        }
    ),
    left_out=re.compile(r"^(model\.)?language_model\.|^lm_head\."),
)
"""A tower of InternVL."""


def _qwen_parts(*networks: tuple[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns the names of a layer of Qwen's whose networks have others."""
    kept = {name: ours for name, ours in QWEN.parts.items() if "mlp" not in name}
    return {**kept, **weights_and_biases(*networks)}


QWEN2: Final = replace(
    QWEN,
    parts=MappingProxyType(
        _qwen_parts(("mlp.fc1", "feed_forward.up"), ("mlp.fc2", "feed_forward.down"))
    ),
    model=MappingProxyType(
        {
            "patch_embed.proj.weight": "patches.matrix",
            "merger.ln_q.weight": "output_norm",
            "merger.ln_q.bias": "output_norm_bias",
            "merger.mlp.0.weight": "projector.inner",
            "merger.mlp.0.bias": "projector.inner_bias",
            "merger.mlp.2.weight": "projector.matrix",
            "merger.mlp.2.bias": "projector.matrix_bias",
        }
    ),
)
"""A tower of Qwen2-VL."""

QWEN25: Final = replace(
    QWEN2,
    parts=MappingProxyType(
        _qwen_parts(
            ("mlp.gate_proj", "feed_forward.gate"),
            ("mlp.up_proj", "feed_forward.up"),
            ("mlp.down_proj", "feed_forward.down"),
        )
    ),
)
"""A tower of Qwen2.5-VL."""

TABLES: Final = (SIGLIP, GEMMA4, GEMMA4_UNIFIED, QWEN, PIXTRAL, INTERNVL)
"""Of all towers."""


def tower_names(config: ModelConfig) -> NameTable:
    """Returns the names of a tower's weights."""
    if config.architecture == "siglip":
        return SIGLIP
    if config.architecture == "gemma4-tower":
        return GEMMA4
    if config.architecture == GEMMA4_UNIFIED_TOWER:
        return GEMMA4_UNIFIED
    if config.architecture in PIXTRAL_TOWERS:
        return PIXTRAL
    if config.architecture == "qwen2vl-tower":
        return QWEN2
    if config.architecture == "qwen25vl-tower":
        return QWEN25
    if config.architecture in ("internvl-tower", "internvl-6b-tower"):
        return INTERNVL
    merging = [index for index, layer in enumerate(config.layers) if layer.merger_features]
    inner = [
        name
        for number, index in enumerate(merging)
        for stem in [f"deepstack_merger_list.{number}."]
        for ours in [f"layers.{index}.merger"]
        for name in (*_merger(stem, ours), (f"{stem}norm", f"{ours}.norm"))
    ]
    rows = {theirs: ours for theirs, (ours,) in weights_and_biases(*inner).items()}
    return replace(QWEN, model=MappingProxyType({**QWEN.model, **rows}))
