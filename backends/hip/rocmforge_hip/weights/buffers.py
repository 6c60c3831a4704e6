"""Names of the activation buffers: each product with a matrix is written to one of them."""

from __future__ import annotations

from typing import Final

RESIDUAL: Final = "residual"
NORMED: Final = "normed"
POST_NORMED: Final = "post_normed"
ROTATED: Final = "rotated"
ATTENDED: Final = "attended"
ROWS: Final = "rows"
GATHERED: Final = "gathered"
QKV_BUFFERS: Final = ("qkv", "qkv_2", "qkv_3")
DELTA: Final = "delta"
HIDDEN: Final = "hidden"
LOGITS: Final = "logits"
POOLED: Final = "pooled"
DENSE: Final = "dense"
SCORES: Final = "scores"
