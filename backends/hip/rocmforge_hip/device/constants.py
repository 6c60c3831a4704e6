"""Constants that the kernels' headers define, and launches and the layout of weights rely on.

Sizes are planned before kernels are loaded, so they are declared here once more; the manifest of
each target says what its headers had, and `check_constants` compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rocmforge.errors import ConfigurationError

QUANT_BLOCK: Final = 32
"""Weights of a row that lie together; the in_features of a matrix are a multiple."""
ROW_ALIGN: Final = 32
"""Rows of a matrix are padded to a multiple with zeros."""
GATE_ROWS: Final = 16
"""Rows of gate, then as many of up."""
GEMM_COLUMNS: Final = 128
"""Stored rows of a matrix that a block of GEMM multiplies with."""
WIDE_GEMM_ROWS: Final = 272
"""Of activations, that a block of GEMM takes at most where there are kernels for very many."""
MOST_GROUPS: Final = 1024
"""Experts, or heads that have a matrix each, by which pairs are sorted, at most."""
SHORT_QUANT_BLOCKS: Final = 40
"""Of a row, of which 64 of an expert stay in LDS while a block goes through its matrix, at most."""
GATED_QUANT_BLOCKS: Final = 64
"""Of a row, of which GATED_ROWS stay there while a block goes through gate and up, at most."""
GATED_ROWS: Final = 48
"""Of an expert, at most."""
SHARE_ROUNDS: Final = 2
"""Of blocks that share tiles of rows that stay in LDS, at most."""
STREAMED_ROWS: Final = 8
"""Of activations, slices included, that int8 products multiply whose waves copy weights ahead."""
STREAMED_QUANT_BLOCKS: Final = 224
"""Of a row of such a matrix, at most."""
BLOCK_TOKENS: Final = 32
"""Of a block of the cache."""
ATTENTION_ROWS: Final = 128
"""Queries of a block of attention from several new tokens."""
ATTENTION_VALUES: Final = 256
"""Elements of values whose results such a block has."""
TEAM_ROWS: Final = 8
"""Of queries that a wave of decode attention has for a team: heads of its sequences."""
SPLIT_ROUND: Final = 64
"""Tokens that the waves of a block of decode attention read at once, with most kernels."""
LEAST_ROUNDED: Final = 512
"""Visible tokens whose splits are whole rounds; with fewer, that was measured to be slower."""
MERGE_SUMS: Final = 4
"""To which the splits of decode attention are added: threads for four elements of their result."""
MAX_SINK_DIM: Final = 128
"""Elements of the values of the largest head that may have a sink."""
MAX_SPLIT_DIM: Final = 256
"""Elements of the largest head whose keys may be split among blocks when it has several queries."""
MAX_SCALED_SPLIT_DIM: Final = 128
"""The same, where the cache has scales."""
NARROW_HEAD_DIM: Final = 256
"""Elements of a head above which another kernel rotates and stores it."""
STATE_CHUNK: Final = 64
"""Tokens that recurrences with matrix products take at a time."""
STATE_CHUNK_DIM: Final = 128
"""Elements of their states over which is summed."""
STATE_CHUNK_COLUMNS: Final = 32
"""Elements of a state's other dimension that a block has."""
NARROW_STATE_COLUMNS: Final = 16
"""The same where such blocks are too few."""
NOT_GATED: Final = 0
SILU: Final = 1
GELU_TANH: Final = 2
GELU: Final = 3
CLAMPED_SWIGLU: Final = 4
SQUARED_RELU: Final = 5
ROUTE_SOFTMAX: Final = 0
ROUTE_SIGMOID: Final = 1
ROUTE_SOFTMAX_OF_CHOSEN: Final = 2
MOST_EXPERTS: Final = 512
"""Of a layer."""
MOST_SHARED_BLOCKS: Final = 128
"""Quant blocks of a row, where pairs share what is read of their expert."""
MOST_PLAIN_DIM: Final = 512
"""Elements of a query to latent vectors that do not rotate, where one launch does all with them."""

IN_HEADERS: Final = MappingProxyType(
    {
        "kQuantBlock": QUANT_BLOCK,
        "kRowAlign": ROW_ALIGN,
        "kGateRows": GATE_ROWS,
        "kTileColumns": GEMM_COLUMNS,
        "kWideTileRows": WIDE_GEMM_ROWS,
        "kMostGroups": MOST_GROUPS,
        "kShortQuantBlocks": SHORT_QUANT_BLOCKS,
        "kGatedQuantBlocks": GATED_QUANT_BLOCKS,
        "kGatedRows": GATED_ROWS,
        "kShareRounds": SHARE_ROUNDS,
        "kStreamRows": STREAMED_ROWS,
        "kStreamQuantBlocks": STREAMED_QUANT_BLOCKS,
        "kBlockTokens": BLOCK_TOKENS,
        "kAttentionRows": ATTENTION_ROWS,
        "kAttentionValues": ATTENTION_VALUES,
        "kSplitRound": SPLIT_ROUND,
        "kLeastRounded": LEAST_ROUNDED,
        "kMergeSums": MERGE_SUMS,
        "kTeamRows": TEAM_ROWS,
        "kMaxSinkDim": MAX_SINK_DIM,
        "kMaxSplitDim": MAX_SPLIT_DIM,
        "kMaxScaledSplitDim": MAX_SCALED_SPLIT_DIM,
        "kNarrowHeadDim": NARROW_HEAD_DIM,
        "kStateChunk": STATE_CHUNK,
        "kStateChunkDim": STATE_CHUNK_DIM,
        "kStateChunkColumns": STATE_CHUNK_COLUMNS,
        "kNarrowStateColumns": NARROW_STATE_COLUMNS,
        "kNotGated": NOT_GATED,
        "kSilu": SILU,
        "kGeluTanh": GELU_TANH,
        "kGelu": GELU,
        "kClampedSwiglu": CLAMPED_SWIGLU,
        "kSquaredRelu": SQUARED_RELU,
        "kRouteSoftmax": ROUTE_SOFTMAX,
        "kRouteSigmoid": ROUTE_SIGMOID,
        "kRouteSoftmaxOfChosen": ROUTE_SOFTMAX_OF_CHOSEN,
        "kMostExperts": MOST_EXPERTS,
        "kMostSharedBlocks": MOST_SHARED_BLOCKS,
        "kMostPlainDim": MOST_PLAIN_DIM,
    }
)
"""By their names there."""


def check_constants(target: str, built_with: Mapping[str, int]) -> None:
    """Compares the constants with those that the kernels of a target were built with.

    Raises:
        ConfigurationError: One differs or is missing: says which, and how to build them again.
    """
    for name, value in IN_HEADERS.items():
        if built_with.get(name) != value:
            raise ConfigurationError(
                f"The kernels for {target} were built with {name} = {built_with.get(name)}, but "
                f"{value} is needed here. Build them again: "
                f"`python -m kernels.build --targets {target}`."
            )
