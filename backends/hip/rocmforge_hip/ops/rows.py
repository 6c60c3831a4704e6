"""Launches of kernels on rows: tables, gathers, sums, functions of elements."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any, Final

from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import rows as row_kernels
from rocmforge_hip.ops.activations import Activation, PerLayerArrays
from rocmforge_hip.ops.norms import norm_threads, row_blocks
from rocmforge_hip.ops.operands import f32_of, optional_vector, part_of, vector_of
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.weights.formats import FLOAT_FORMATS, Matrix, Weight, ceil_div

_EMBED_THREADS: Final = 64
_ITEM_BYTES: Final = 16  # that a thread of `rf_embed_add` reads
_TAKE_ELEMENTS: Final = 1024  # of a block
_HALVES: Final = 2048  # of a block of GELU
_GELUS: Final = MappingProxyType(
    {
        ActivationFunction.GELU: "rf_gelu_half",
        ActivationFunction.GELU_TANH: "rf_gelu_tanh_half",
        ActivationFunction.QUICK_GELU: "rf_gelu_quick_half",
    }
)
"""Their kernels."""
_GATED_ELEMENTS: Final = 1024  # of a block
_SUM_COLUMNS: Final = 32  # of a block
_SUM_THREADS: Final = 1024
_FEW_ROWS: Final = 64  # are added up by fewer threads
_FEW_SUM_THREADS: Final = 256
_THREADS: Final = 256


class RowKernels:
    """Launches them.

    Args:
        library: Where the kernels are.
        formats: Stored types of the tables to embed with.
        adds: Whether positions and types are embedded too, and GELU is a step of its own.
        gates: Whether results of attention have gates.
    """

    def __init__(
        self, library: KernelLibrary, formats: frozenset[str], *, adds: bool, gates: bool
    ) -> None:
        self._embed = {
            name: library.kernel(f"rf_embed_{name}", row_kernels.rf_embed) for name in formats
        }
        self._take = library.kernel("rf_take_rows", row_kernels.rf_take_rows)
        self._sum = library.kernel("rf_sum_rows", row_kernels.rf_sum_rows)
        self._softcap = library.kernel("rf_softcap", row_kernels.rf_softcap)
        self._add_to = library.kernel("rf_add_rows", row_kernels.rf_add_rows)
        self._give = library.kernel("rf_give_rows", row_kernels.rf_give_rows)
        if gates:
            self._sigmoid_gate = library.kernel("rf_sigmoid_gate", row_kernels.rf_sigmoid_gate)
        if adds:
            self._add = {
                name: library.kernel(f"rf_embed_add_{name}", row_kernels.rf_embed_add)
                for name in FLOAT_FORMATS
            }
            self._between = {
                name: library.kernel(f"rf_embed_between_{name}", row_kernels.rf_embed_between)
                for name in FLOAT_FORMATS
            }
            self._gelu = {
                form: library.kernel(name, row_kernels.rf_gelu) for form, name in _GELUS.items()
            }

    def embed(self, table: Matrix, tokens: DeviceArray, scale: float, out: DeviceArray) -> None:
        """Takes rows of the table, times scale: int32 tokens, float32 out [rows, in_features]."""
        count, features = out.shape
        assert features == table.in_features
        self._embed[table.format.name].launch(
            (ceil_div(table.row_loads, _EMBED_THREADS), count, 1),
            _EMBED_THREADS,
            table=table.data,
            tokens=tokens,
            out=out,
            vocab_size=table.out_features,
            quant_blocks=table.quant_blocks,
            scale=scale,
        )

    def add(
        self, step: DeviceStep, positions: Weight | None, types: Weight | None, x: DeviceArray
    ) -> None:
        """Adds rows of the table of positions and the first of that of types: float32 x."""
        rows, features = x.shape
        table = None if positions is None else part_of(positions).matrix
        name = "f32" if table is None else table.format.name
        items = features * (4 if name == "f32" else 2) // _ITEM_BYTES
        self._add[name].launch(
            (ceil_div(items, _EMBED_THREADS), rows, 1),
            _EMBED_THREADS,
            table=None if table is None else table.data,
            positions=step.inputs.positions,
            type=optional_vector(types, features),
            x=x,
            table_rows=0 if table is None else table.out_features,
            quant_blocks=features // QUANT_BLOCK,
        )

    def add_vector(self, vector: Weight, x: DeviceArray) -> None:
        """Adds a vector to each row: float32 x."""
        rows, features = x.shape
        self._add["f32"].launch(
            (ceil_div(features * 4 // _ITEM_BYTES, _EMBED_THREADS), rows, 1),
            _EMBED_THREADS,
            table=None,
            positions=None,
            type=vector_of(vector, features),
            x=x,
            table_rows=0,
            quant_blocks=features // QUANT_BLOCK,
        )

    def between(self, step: DeviceStep, table: Matrix, out: DeviceArray) -> None:
        """Adds up rows of a table as the step says: float32 out [rows, in_features]."""
        rows, features = out.shape
        name = table.format.name
        items = features * (4 if name == "f32" else 2) // _ITEM_BYTES
        self._between[name].launch(
            (rows, ceil_div(items, _EMBED_THREADS), 1),
            _EMBED_THREADS,
            table=table.data,
            rows=step.inputs.place_ids,
            shares=step.inputs.place_shares,
            out=out,
            table_rows=table.out_features,
            quant_blocks=features // QUANT_BLOCK,
        )

    def take(self, x: DeviceArray, rows: DeviceArray, out: DeviceArray) -> None:
        """Takes rows of x by their numbers: float32 out [rows, features]."""
        count, features = out.shape
        self._take.launch(
            (ceil_div(features, _TAKE_ELEMENTS), count, 1),
            _THREADS,
            x=x,
            rows=rows,
            out=out,
            hidden_size=features,
        )

    def sum(self, step: DeviceStep, x: DeviceArray, out: DeviceArray) -> None:
        """Adds up the rows of x in each range of the step: float32 out [sums, features]."""
        sums, features = out.shape
        assert (sums, features) == (step.shape.sums, x.shape[1])
        self._sum.launch(
            (ceil_div(features, _SUM_COLUMNS), sums, 1),
            _FEW_SUM_THREADS if step.shape.longest_prefill <= _FEW_ROWS else _SUM_THREADS,
            x=x,
            ranges=step.inputs.hidden_ranges,
            out=out,
            hidden_size=features,
        )

    def add_rows(self, delta: Activation, total: Activation) -> None:
        """Adds float32 rows to others, in place."""
        self._add_to.launch(
            *row_blocks(total),
            delta=f32_of(delta),
            residual=f32_of(total),
            post_weight=None,
            out=Activation(total.arrays, total.rows, total.features),
            hidden_size=total.features,
            eps=0.0,
        )

    def give_rows(self, x: Activation, out: Activation) -> None:
        """Copies float32 rows."""
        self._give.launch(*row_blocks(x), x=f32_of(x), out=out, hidden_size=x.features)

    def softcap(self, x: DeviceArray, cap: float) -> None:
        """Makes x cap * tanh(x / cap), in place."""
        count = math.prod(x.shape)
        self._softcap.launch(
            (ceil_div(count, _THREADS), 1, 1),
            _THREADS,
            x=x,
            cap=cap,
            count=count,
        )

    def sigmoid_gate(self, x: Activation, gate: Activation) -> None:
        """Multiplies each form that x has with sigmoid(gate), float32, in place."""
        self._sigmoid_gate.launch(
            (ceil_div(x.features, _GATED_ELEMENTS), x.rows, 1),
            _THREADS,
            gate=f32_of(gate),
            x=x,
            stride=gate.stride or gate.features,
            features=x.features,
        )

    def gelu(self, x: DeviceArray, count: int, form: ActivationFunction) -> None:
        """Replaces so many halves by their GELU, in one of its forms."""
        self._gelu[form].launch((ceil_div(count, _HALVES), 1, 1), _THREADS, x=x, count=count)


class PerLayerRows:
    """Makes the tokens' other embedding, and what layers read of it.

    Args:
        library: Where the kernels are.
        config: The model.
        rows: Takes rows of the table.
        arrays: For the results.
    """

    def __init__(
        self,
        library: KernelLibrary,
        config: ModelConfig,
        rows: RowKernels,
        arrays: PerLayerArrays[DeviceArray],
    ) -> None:
        self.gated: Final = arrays.gated
        self._size = config.per_layer_size
        # That of a norm of products over sqrt(hidden_size).
        self._eps = config.norm_eps * config.hidden_size
        self._rows = rows
        self._arrays = arrays
        self._columns = library.kernel("rf_rms_norm_columns", row_kernels.rf_rms_norm_columns)
        self._gate = library.kernel("rf_gate_per_layer", row_kernels.rf_gate_per_layer)

    def prepare(
        self, table: Matrix, tokens: DeviceArray, projected: Activation, norm: Weight
    ) -> None:
        """Takes the tokens' rows of the table, and norms what was projected for each layer."""
        size, rows = self._size, projected.rows
        taken = self._arrays.rows.first(rows, projected.features)
        self._rows.embed(table, tokens, math.sqrt(size), taken)
        self._columns.launch(
            (rows * projected.features // size, 1, 1),
            norm_threads(size),
            x=f32_of(projected),
            weight=vector_of(norm, size),
            stride=size,
            hidden_size=size,
            other=None,
            other_weight=None,
            other_stride=0,
            other_size=0,
            eps=self._eps,
        )

    def own(self, projected: Activation, layer: int) -> dict[str, Any]:
        """Returns the layer's part of the other embedding, as arguments of kernels."""
        columns = layer * self._size, (layer + 1) * self._size
        rows = self._arrays.rows.first(projected.rows, projected.features)
        return {
            "rows": rows.columns(*columns),
            "projected": f32_of(projected).columns(*columns),
            "stride": projected.features,
            "scale": math.sqrt(0.5),
        }

    def gate(self, gate: Activation, own: dict[str, Any], out: Activation) -> None:
        """Multiplies GELU(gate) with the layer's part of the other embedding."""
        self._gate.launch(
            (ceil_div(self._size, _GATED_ELEMENTS), gate.rows, 1),
            _THREADS,
            **own,
            gate=f32_of(gate),
            out=out,
            features=self._size,
        )


class HiddenRows:
    """Keeps hidden states for a predictor, and joins them to what it reads.

    Args:
        library: Where the kernels are.
        eps: Of the norms.
        kept: float16 [slots of the cache, hidden_size].
    """

    def __init__(self, library: KernelLibrary, eps: float, kept: DeviceArray) -> None:
        self._eps = eps
        self._kept = kept
        self._store = library.kernel("rf_store_hidden", row_kernels.rf_store_hidden)
        self._beside = library.kernel("rf_beside_hidden", row_kernels.rf_beside_hidden)

    def store(self, step: DeviceStep, x: Activation) -> None:
        """Keeps the rows of x at the slots of the step's tokens."""
        self._store.launch(
            (ceil_div(x.features, _TAKE_ELEMENTS), x.rows, 1),
            _THREADS,
            x=f32_of(x),
            slots=step.inputs.slots,
            hidden=self._kept,
            hidden_size=x.features,
        )

    def beside(
        self, step: DeviceStep, x: Activation, norms: tuple[Weight, Weight], out: Activation
    ) -> None:
        """Norms the rows of x, and those kept of the tokens before them: out, twice as wide."""
        assert out.features == 2 * x.features
        self._beside.launch(
            (x.rows, 2, 1),
            norm_threads(x.features),
            x=f32_of(x),
            hidden=self._kept,
            before=step.inputs.slots_before,
            x_norm=vector_of(norms[0], x.features),
            hidden_norm=vector_of(norms[1], x.features),
            out=out,
            hidden_size=x.features,
            eps=self._eps,
        )
