"""Names of the tensors of encoders in folders."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rocmforge.huggingface.name_table import ATTENTION, NameTable, weights_and_biases

_EMBEDDINGS: Final = {
    "embeddings.word_embeddings.weight": "embedding.token",
    "embeddings.position_embeddings.weight": "embedding.position",
    "embeddings.token_type_embeddings.weight": "embedding.type",
    "embeddings.LayerNorm.weight": "embedding.norm",
    "embeddings.LayerNorm.bias": "embedding.norm_bias",
    "emb_ln.weight": "embedding.norm",
    "emb_ln.bias": "embedding.norm_bias",
}
_BERT_ATTENTION: Final = weights_and_biases(
    ("attention.self.query", "attention.q"),
    ("attention.self.key", "attention.k"),
    ("attention.self.value", "attention.v"),
    ("attention.output.dense", "attention.output"),
    ("attention.output.LayerNorm", "attention_norm"),
)
# The head of RoBERTa, and that of BERT, whose first matrix is the pooler's.
_SCORES: Final = {
    f"classifier{place}.{kind}": f"head.{ours}{'_bias' if kind == 'bias' else ''}"
    for place, ours in ((".dense", "dense"), (".out_proj", "scores"), ("", "scores"))
    for kind in ("weight", "bias")
}
_POOLER: Final = {"pooler.dense.weight": "head.dense", "pooler.dense.bias": "head.dense_bias"}

_BERT: Final = NameTable(
    prefixes=("bert.", "roberta.", "nomic_bert.", "model."),
    layer=re.compile(r"encoder\.layer\.(\d{1,4})\."),
    parts=MappingProxyType(
        {
            **_BERT_ATTENTION,
            **weights_and_biases(
                ("intermediate.dense", "feed_forward.up"),
                ("output.dense", "feed_forward.down"),
                ("output.LayerNorm", "feed_forward_norm"),
            ),
        }
    ),
    model=MappingProxyType({**_EMBEDDINGS, **_SCORES}),
    left_out=re.compile(  # heads of training
        r"^(cls|lm_head|pooler|head|decoder)\.|^\w+\.pooler\.|position_ids$|token_type_ids$"
        r"|\.inv_freq$"
    ),
)
_RANKER: Final = replace(
    _BERT,
    model=MappingProxyType({**_BERT.model, **_POOLER}),
    left_out=re.compile(r"position_ids$|token_type_ids$"),
)
_JINA: Final = replace(
    _BERT,
    parts=MappingProxyType(
        {
            **_BERT_ATTENTION,
            **weights_and_biases(
                ("attention.self.layer_norm_q", "attention.q_norm"),
                ("attention.self.layer_norm_k", "attention.k_norm"),
                ("layer_norm_1", "attention_norm_2"),
                ("layer_norm_2", "feed_forward_norm"),
                ("mlp.layernorm", "feed_forward_norm"),
                ("mlp.wo", "feed_forward.down"),
                ("mlp.down_layer", "feed_forward.down"),
            ),
            # The model for code has the gate behind the other half.
            "mlp.gated_layers.weight": ("feed_forward.gate", "feed_forward.up"),
            "mlp.up_gated_layer.weight": ("feed_forward.up", "feed_forward.gate"),
        }
    ),
    model=MappingProxyType(_EMBEDDINGS),
)
_NOMIC: Final = replace(
    _BERT,
    layer=re.compile(r"(?:encoder\.)?layers\.(\d{1,4})\."),
    parts=MappingProxyType(
        {
            **ATTENTION,
            **weights_and_biases(
                ("mlp.gate_proj", "feed_forward.gate"),
                ("mlp.up_proj", "feed_forward.up"),
                ("mlp.down_proj", "feed_forward.down"),
                ("post_attention_layernorm", "attention_norm"),
                ("post_mlp_layernorm", "feed_forward_norm"),
                # Its first code.
                ("attn.out_proj", "attention.output"),
                ("mlp.fc11", "feed_forward.up"),
                ("mlp.fc12", "feed_forward.gate"),
                ("mlp.fc2", "feed_forward.down"),
                ("norm1", "attention_norm"),
                ("norm2", "feed_forward_norm"),
            ),
            "attn.Wqkv.weight": ("attention.q", "attention.k", "attention.v"),
        }
    ),
    model=MappingProxyType(_EMBEDDINGS),
)
_MODERN: Final = replace(
    _BERT,
    layer=re.compile(r"layers\.(\d{1,4})\."),
    parts=MappingProxyType(
        {
            **weights_and_biases(
                ("attn_norm", "attention_norm"),
                ("attn.Wo", "attention.output"),
                ("mlp_norm", "feed_forward_norm"),
                ("mlp.Wo", "feed_forward.down"),
                bias=False,
            ),
            "attn.Wqkv.weight": ("attention.q", "attention.k", "attention.v"),
            "mlp.Wi.weight": ("feed_forward.gate", "feed_forward.up"),
        }
    ),
    model=MappingProxyType(
        {
            "embeddings.tok_embeddings.weight": "embedding.token",
            "embeddings.norm.weight": "embedding.norm",
            "final_norm.weight": "output_norm",
        }
    ),
)


def encoder_names(architecture: str, *, ranks: bool) -> NameTable:
    """Returns the names of an encoder's weights, by our name of the architecture."""
    if architecture == "bert":
        return _RANKER if ranks else _BERT
    return {"jina-bert-v2": _JINA, "nomic-bert": _NOMIC, "modern-bert": _MODERN}[architecture]
