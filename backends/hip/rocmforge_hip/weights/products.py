"""The activations that products with matrices are written to."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final


class Product(StrEnum):
    """The activation that the product with a matrix becomes: a field of `ActivationArrays`.

    Queries, keys, values and gates go to as many as they have stored types.
    """

    QKV = auto()
    QKV_2 = auto()
    QKV_3 = auto()
    QKV_4 = auto()
    RESIDUAL = auto()  # with which a predictor begins
    # What attention, the network or patches add to the residual, or makes embeddings at its end.
    DELTA = auto()
    INTERMEDIATE = auto()  # of the feed-forward network
    # Gate and up before the gate is applied, where an adapter changes them, or up within bounds.
    GATE_UP = auto()
    PER_LAYER = auto()  # a token's other embedding, without what a table has of it
    PER_LAYER_GATE = auto()
    EXPERT_INPUTS = auto()  # in a space of their own
    EXPERT_RESULTS = auto()  # back from there
    LOGITS = auto()
    DENSE = auto()  # of a classification head
    SCORES = auto()  # of a classification head; of a tower, rows of embeddings


QKV_PRODUCTS: Final = (Product.QKV, Product.QKV_2, Product.QKV_3, Product.QKV_4)
