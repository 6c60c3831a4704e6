"""Names of tensors of towers in folders, and our names of the weights that they hold."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from rocmforge.huggingface.names import NameTable, weights_and_biases

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
