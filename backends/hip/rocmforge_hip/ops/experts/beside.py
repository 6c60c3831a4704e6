"""Experts of one token and a network beside them, in the same launches.

One multiplies with gate and up of both, and one with down, whose last block may add the sum to the
residual and norm that (kernels/src/experts/experts_beside.hip).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rocmforge.models.blocks import Experts, FeedForward, SharedExpert
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import experts as kernels
from rocmforge_hip.ops.activations import Activation, ActivationArrays, Forms
from rocmforge_hip.ops.experts.pairs import GATE_UP_THREADS, PairKernels, empty_mix, gate_up_of
from rocmforge_hip.ops.experts.routing import UnmadeChoice, UnmadeSum
from rocmforge_hip.ops.geometry import groups_experts
from rocmforge_hip.ops.linear.gemv import GEMV_OUTPUTS, gemv_threads
from rocmforge_hip.ops.linear.gemv_groups import KernelsByGroup
from rocmforge_hip.ops.linear.later import is_norm_later
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.norms import without_norm
from rocmforge_hip.ops.operands import empty, f32_of, i32_of, optional_vector, part_of, vector_of
from rocmforge_hip.weights.formats import FORMAT_NUMBERS, Weight
from rocmforge_hip.weights.products import Product

_NORMED_FEATURES: Final = 16  # of a thread, at most
_NOT_ADDED: Final = {
    "arrived": None,
    "mixed_weight": None,
    "shared_weight": None,
    "shares": None,
    "residual": None,
    "post_weight": None,
    "scale_of_sum": None,
    "norm_weight": None,
    "normed": Activation(Forms(), 0, 0),
    "eps": 0.0,
}


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadeDowns:
    """The products of down for both, which one launch makes."""

    kernel: Kernel[...]
    grid: int
    threads: int
    arguments: dict[str, Any]  # of the kernel, by name
    is_made: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class DownBeside(Activation):
    """One of these products: where it is written to."""

    both: UnmadeDowns


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The kernels for a group of stored types."""

    gate_up: Kernel[...]
    choose: Kernel[...]
    down: Kernel[...]

    @classmethod
    def load(cls, library: KernelLibrary, *, are_mixed: bool) -> _Kernels:
        """Returns those for the formats that files mix, or for all formats."""
        end = "" if are_mixed else "_quantised"
        return cls(
            library.kernel(f"rf_experts_gate_up_beside{end}", kernels.rf_experts_gate_up_beside),
            library.kernel(
                f"rf_experts_choose_gate_up_beside{end}", kernels.rf_experts_choose_gate_up_beside
            ),
            library.kernel(f"rf_experts_down_beside{end}", kernels.rf_experts_down_beside),
        )


class BesideKernels:
    """Launches them.

    Args:
        library: Where the kernels are.
        arena: The arrays of the activations; there are some of experts.
        products: Has the int8 forms of activations.
        pairs: What multiplies with experts alone, and knows the arguments.
        formats: Stored types of all matrices.
        eps: Of norms.
    """

    def __init__(
        self,
        library: KernelLibrary,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        pairs: PairKernels,
        formats: frozenset[str],
        eps: float,
    ) -> None:
        self._arena, self._products, self._pairs, self._eps = arena, products, pairs, eps
        self._kernels = KernelsByGroup(
            formats, lambda are_mixed: _Kernels.load(library, are_mixed=are_mixed)
        )

    def chooses(self, x: Activation, num_chosen: int, experts: Experts[Weight]) -> bool:
        """Returns whether gate and up of both can choose so many experts, as of `multiplies`."""
        network = experts.shared
        return network is not None and self.multiplies(x, num_chosen, experts, network)

    def multiplies(
        self,
        x: Activation,
        num_chosen: int,
        experts: Experts[Weight],
        network: FeedForward[Weight] | SharedExpert[Weight],
    ) -> bool:
        """Returns whether there are kernels for so many experts of a token and the network.

        Args:
            x: Has as many rows as there are tokens.
            num_chosen: Of each token.
            experts: Of the layer.
            network: Beside them.
        """
        if experts.gate is None or network.gate is None or experts.latent_up is not None:
            return False
        up, down = part_of(network.up).matrix, part_of(network.down).matrix
        of_pairs = gate_up_of(experts), part_of(experts.down).matrix
        has_biases = experts.gate_bias is not None or experts.down_bias is not None
        if has_biases or part_of(network.gate).matrix is not up:
            return False
        if groups_experts(num_chosen, of_pairs[1].num_experts, self._products.slices):
            return False
        threads = self._pairs.down_threads(1, of_pairs[1])
        return (
            up.out_features % QUANT_BLOCK == 0
            and all(matrix.format.is_quantised for matrix in (*of_pairs, up, down))
            and gemv_threads(down.quant_blocks) <= threads
            and threads <= self._kernels.of(of_pairs[1], down).down.max_threads
            and self._products.is_one_row(x, (up, down))
        )

    def mix(
        self,
        inputs: tuple[Activation, Activation],
        chosen: tuple[Activation, Activation],
        experts: Experts[Weight],
        network: FeedForward[Weight] | SharedExpert[Weight],
        gate: int,
    ) -> tuple[Activation, Activation]:
        """Returns what `Ops.experts_beside` does, the last products to be made later."""
        (x, other), (choice, weights) = inputs, chosen
        up, down = part_of(network.up), part_of(network.down)
        assert up.product is not None
        forms, matrix = self._products.forms, gate_up_of(experts)
        group = self._kernels.of(matrix, up.matrix)
        _, arguments = self._pairs.gate_up(choice.features, experts, gate)
        inner = empty(self._arena.product(up.product), 1, up.matrix.out_features, half=False)
        forms.give_int8(inner)
        q, scale = forms.int8(x)
        unbiased = {name: value for name, value in arguments.items() if not name.endswith("bias")}
        blocks = (inner.features + choice.features * matrix.out_features) // QUANT_BLOCK
        arguments_of_both: dict[str, Any] = {
            **unbiased,
            "q": q,
            "scale": scale,
            "format": FORMAT_NUMBERS[matrix.format.name],
            "beside_weight": up.matrix.data,
            "beside_out": inner,
            "beside_features": inner.features,
            "beside_format": FORMAT_NUMBERS[up.matrix.format.name],
            "beside_threads": gemv_threads(up.matrix.quant_blocks),
        }
        sums = None
        if isinstance(choice, UnmadeChoice):
            assert x is other
            assert is_norm_later(x)
            sums = choice.sums
            group.choose.launch(
                (blocks + 1, 1, 1),
                GATE_UP_THREADS,
                **arguments_of_both,
                logit_sums=sums,
                choice=choice.rule,
                squares=x.squares,
                eps=x.eps,
            )
        else:
            other_q, other_scale = forms.int8(other)
            group.gate_up.launch(
                (blocks, 1, 1),
                GATE_UP_THREADS,
                **arguments_of_both,
                chosen=i32_of(choice),
                num_chosen=choice.features,
                beside_q=other_q,
                beside_scale=other_scale,
            )
        of_pairs = part_of(experts.down).matrix
        mixed = empty_mix(self._arena, 1, experts)
        made = empty(self._arena.product(Product.DELTA), 1, mixed.features, half=False)
        pairs_q, pairs_scale = forms.int8(arguments["out"])
        inner_q, inner_scale = forms.int8(inner)
        both = UnmadeDowns(
            kernel=self._kernels.of(of_pairs, down.matrix).down,
            grid=2 * down.matrix.stored_rows // GEMV_OUTPUTS,
            threads=self._pairs.down_threads(1, of_pairs),
            arguments={
                "weight": of_pairs.data,
                "places": of_pairs.places,
                "q": pairs_q,
                "scale": pairs_scale,
                "chosen": i32_of(choice),
                "weights": f32_of(weights),
                "out": f32_of(mixed),
                "expert_bytes": of_pairs.nbytes,
                "num_chosen": choice.features,
                "out_features": mixed.features,
                "quant_blocks": of_pairs.quant_blocks,
                "format": FORMAT_NUMBERS[of_pairs.format.name],
                "beside_weight": down.matrix.data,
                "beside_q": inner_q,
                "beside_scale": inner_scale,
                "beside_out": f32_of(made),
                "beside_quant_blocks": down.matrix.quant_blocks,
                "beside_format": FORMAT_NUMBERS[down.matrix.format.name],
                "beside_threads": gemv_threads(down.matrix.quant_blocks),
                "logit_sums": sums,
                "logits": 0 if sums is None else sums.shape[0],
            },
        )
        first, second = (
            DownBeside(out.arrays, 1, out.features, f32=out.f32, both=both) for out in (mixed, made)
        )
        return first, second

    def make(self, both: UnmadeDowns) -> None:
        """Makes the products, unless somebody has."""
        if not both.is_made:
            self._launch(both, _NOT_ADDED)

    def adds_and_norms(self, total: UnmadeSum, weight: Weight | None) -> bool:
        """Returns whether the launch that makes both products adds their sum and norms that."""
        first, second = (without_norm(x)[0] for x in (total.first, total.second))
        return (
            weight is not None
            and isinstance(first, DownBeside)
            and isinstance(second, DownBeside)
            and first.both is second.both
            and not first.both.is_made
            and first.features <= _NORMED_FEATURES * first.both.threads
        )

    def add_and_norm(
        self,
        residual: Activation,
        total: UnmadeSum,
        weight: Weight,
        scale: Weight | None,
        out: Activation,
    ) -> None:
        """Does what `RouteKernels.add_and_norm` does."""
        features = residual.features
        (first, first_norm), (_, second_norm) = map(without_norm, (total.first, total.second))
        assert isinstance(first, DownBeside)
        added = {
            "arrived": self._arena.arrived,
            "mixed_weight": optional_vector(first_norm, features),
            "shared_weight": optional_vector(second_norm, features),
            "shares": total.shares,
            "residual": f32_of(residual),
            "post_weight": optional_vector(total.post_norm, features),
            "scale_of_sum": optional_vector(scale, 1),
            "norm_weight": vector_of(weight, features),
            "normed": out,
            "eps": self._eps,
        }
        self._launch(first.both, added)

    def _launch(self, both: UnmadeDowns, added: dict[str, Any]) -> None:
        both.is_made = True
        both.kernel.launch((both.grid, 1, 1), both.threads, **both.arguments, **added)
