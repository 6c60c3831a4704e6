"""Operations that towers alone have: from the patches of images to the rows that a model reads."""

from __future__ import annotations

from typing import Final

from rocmforge.models.config import ModelConfig, TowerConfig
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, ActivationArrays, Forms
from rocmforge_hip.ops.norms import RmsNorms
from rocmforge_hip.ops.operands import empty, f16_of, f32_of, part_of
from rocmforge_hip.ops.rows import RowKernels
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.weights.formats import Weight

_LEAST_EPS: Final = 1e-30  # of a norm of what was normed


class TowerRows:
    """Makes patches, their embeddings and the rows of images, as `Ops` says of each.

    Args:
        config: The model of the tower.
        tower: What it has of a tower.
        library: Where the kernels are.
        rows: Launches those on rows.
        arena: The arrays of the activations.
        patches: Those for patches.
    """

    def __init__(
        self,
        config: ModelConfig,
        tower: TowerConfig,
        library: KernelLibrary,
        rows: RowKernels,
        arena: ActivationArrays[DeviceArray],
        patches: Forms[DeviceArray],
    ) -> None:
        self._config = config
        self._rows = rows
        self._arena = arena
        self._patches = patches
        self._sum_norms = RmsNorms(library, config.norm_eps) if tower.averages else None

    def patches(self, step: DeviceStep) -> Activation:
        """Returns the patches that the step brings, halves."""
        assert step.patches is not None, "a step of a tower brings patches"
        out = empty(self._patches, step.shape.tokens, self._config.patch_features, half=True)
        step.patches.copy_to(f16_of(out))
        return out

    def embed_between(self, step: DeviceStep, table: Weight) -> Activation:
        """Returns the embeddings of places, where those of tokens are otherwise."""
        rows, matrix = step.shape.tokens, part_of(table).matrix
        result = self._arena.residual or self._arena.normed
        out = result.float32(rows, matrix.in_features)
        self._rows.between(step, matrix, out)
        return Activation(result, rows, matrix.in_features, f32=out)

    def merge_rows(self, x: Activation, count: int) -> Activation:
        """Returns so many rows after each other as one; nothing moves."""
        rows, features = x.rows // count, x.features * count
        f32, f16 = (None if form is None else form.first(rows, features) for form in (x.f32, x.f16))
        return Activation(x.arrays, rows, features, f32=f32, f16=f16)

    def norm_sums(
        self,
        x: Activation,
        weight: Weight,
        count: int,
        eps: float,
        standard: tuple[Weight, Weight] | None,
    ) -> Activation:
        """Norms the sums themselves, with as much more of what keeps norms from dividing by 0.

        What multiplies sums is the weight of a norm before that one: it takes from each row a
        factor, which the other one would take.
        """
        assert self._sum_norms is not None
        out = empty(x.arrays, x.rows, x.features, half=True)
        eps *= count * count
        if standard is not None:
            shift, scale = standard
            self._rows.add_vector(shift, f32_of(x))
            self._sum_norms.norm_projection(x, scale, None, eps)
            eps = _LEAST_EPS
        self._sum_norms.norm(x, weight, None, out, eps)
        return out

    def keep_rows(self, rows: Activation, part: int) -> None:
        """Copies rows behind the place where those of the next part are written."""
        parts = rows.arrays.float32(self._config.row_parts * rows.rows, rows.features)
        kept = parts.rows(part * rows.rows, (part + 1) * rows.rows)
        out = Activation(rows.arrays, rows.rows, rows.features, f32=kept)
        self._rows.give_rows(rows, out)

    def image_rows(self, rows: Activation) -> Activation:
        """Returns the parts one after the other, as `OutputLayout` reads them."""
        features = self._config.output_size
        all_parts = rows.arrays.float32(rows.rows, features)
        return Activation(rows.arrays, rows.rows, features, f32=all_parts)
