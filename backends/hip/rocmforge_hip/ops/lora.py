"""LoRA adapters on the device: what they add to the products of linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rocmforge.models.blocks import Role
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import products as kernels
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import empty, f32_of
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.weights.adapters import TILE, AdapterArrays, features_of_split
from rocmforge_hip.weights.formats import Matrix, MatrixPart, ceil_div
from rocmforge_hip.weights.products import Product

_SHRINK_WAVES: Final = 8
_EXPAND_WAVES: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAdapters:
    """All adapters of one matrix: kernels/src/matrices/lora.hip."""

    arrays: AdapterArrays[DeviceArray]
    parts: int
    ranks: int  # elements of a shrunk row
    output_tiles: int  # of the widest part


class Lora:
    """Adds to products what the adapters of a step's sequences make of them."""

    def __init__(
        self,
        library: KernelLibrary,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        adapters: Mapping[Matrix, DeviceAdapters],
    ) -> None:
        self._arena = arena
        self._products = products
        self._adapters = adapters
        self._wave = library.wave_size
        self._shrink_f32 = library.kernel("rf_lora_shrink_f32", kernels.rf_lora_shrink)
        self._shrink_f16 = library.kernel("rf_lora_shrink_f16", kernels.rf_lora_shrink)
        self._expand = library.kernel("rf_lora_expand", kernels.rf_lora_expand)

    def changes(self, step: DeviceStep, matrix: Matrix) -> bool:
        """Returns whether a sequence of the step may have an adapter that changes the matrix."""
        return step.shape.lora_tiles > 0 and matrix in self._adapters

    def add(self, step: DeviceStep, x: Activation, matrix: Matrix, product: Activation) -> None:
        """Adds to the product of x with the whole matrix, in float32."""
        if not self.changes(step, matrix):
            return
        adapters, tiles, inputs = self._adapters[matrix], step.shape.lora_tiles, step.inputs
        arrays = adapters.arrays
        split_features = features_of_split(x.rows, x.features)
        splits = ceil_div(x.features, split_features)
        assert self._arena.lora_shrunk is not None
        shrunk = self._arena.lora_shrunk.first(splits, tiles * TILE, adapters.ranks)
        shrink = self._shrink_f32 if x.f16 is None else self._shrink_f16
        shrink.launch(
            (adapters.ranks // TILE, tiles, splits),
            _SHRINK_WAVES * self._wave,
            x=f32_of(x) if x.f16 is None else x.f16,
            a=arrays.a,
            tiles=inputs.lora_tiles,
            order=inputs.lora_order,
            adapters=arrays.places,
            shrunk=shrunk,
            in_features=x.features,
            split_features=split_features,
            parts=adapters.parts,
            ranks=adapters.ranks,
        )
        self._expand.launch(
            (ceil_div(adapters.output_tiles, _EXPAND_WAVES), adapters.parts, tiles),
            _EXPAND_WAVES * self._wave,
            shrunk=shrunk,
            b=arrays.b,
            tiles=inputs.lora_tiles,
            order=inputs.lora_order,
            adapters=arrays.places,
            factors=arrays.factors,
            outputs=arrays.outputs,
            y=f32_of(product),
            splits=splits,
            ranks=adapters.ranks,
            out_features=product.features,
        )

    def gated(self, step: DeviceStep, x: Activation, part: MatrixPart, gate: int) -> Activation:
        """Multiplies, and applies the gate to what adapters have made of the product.

        A product with gate and up rows as they are stored is what a GEMM with a split K leaves,
        with one split: the same kernel finishes both.
        """
        matrix = part.matrix
        stored = replace(matrix, out_features=matrix.stored_rows)
        product = self._products.multiply(
            x, MatrixPart(stored, 0, stored.out_features, Product.GATE_UP, Role.COLUMN), None
        )
        self.add(step, x, matrix, product)
        assert part.product is not None
        out = empty(
            self._arena.product(part.product),
            x.rows,
            matrix.out_features,
            half=x.rows > self._products.gemv_rows,
        )
        self._products.gemm.finish(f32_of(product), None, out, 1, gate)
        return out
