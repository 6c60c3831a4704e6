"""Multi-head latent attention around `CachedAttention`: queries, rows of the cache, and results.

The matrices of heads are those of experts to the kernels: each pair of a token and a head is
multiplied with the matrix of that head. Few tokens go through the kernels for few pairs, or through
those that do at once what lies around the products; more of them go through grouped GEMM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge.models.layer_config import LatentConfig
from rocmforge.models.rope_config import RopeStyle
from rocmforge_hip.device.constants import MOST_PLAIN_DIM, QUANT_BLOCK
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import latent as kernels
from rocmforge_hip.ops.activations import GROUPED_HEADS, Activation, ActivationArrays
from rocmforge_hip.ops.attention.cached import DeviceRopeTable, LayerCache
from rocmforge_hip.ops.experts.grouped_products import GroupedProducts
from rocmforge_hip.ops.experts.pairs import down_kernels
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.gemv import GEMV_OUTPUTS, GEMV_THREADS, gemv_threads
from rocmforge_hip.ops.linear.mixed_gemv import TILES_AT_ONCE
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import empty, f16_of, f32_of, part_of, vector_of
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.weights.formats import Matrix, Weight, ceil_div

_THREADS: Final = 256
_LOADED: Final = 4  # elements of a query, at a time


class LatentKernels:
    """Launches them.

    Args:
        config: The model.
        library: Where the kernels are.
        geometry: For the device.
        arena: The arrays of the activations; there are some of latent attention.
        products: Quantises activations.
        caches: By layer.
        tables: By whether they are for `local_rope`.
        formats: Stored types of the matrices of heads.
    """

    def __init__(
        self,
        config: ModelConfig,
        library: KernelLibrary,
        geometry: Geometry,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        caches: tuple[LayerCache[DeviceArray], ...],
        tables: Mapping[bool, DeviceRopeTable],
        formats: frozenset[str],
    ) -> None:
        assert arena.latent is not None
        self._config = config
        self._wave = library.wave_size
        self._arena = arena
        self._arrays = arena.latent
        self._products = products
        self._caches = caches
        self._tables = tables
        cache = "f16" if caches[0].key_scale is None else "int8"
        self._store = library.kernel(f"rf_latent_store_{cache}", kernels.rf_latent_store)
        self._queries = library.kernel("rf_latent_queries", kernels.rf_latent_queries)
        self._join = library.kernel("rf_join_heads", kernels.rf_join_heads)
        self._few = down_kernels(library, formats, products.slices)
        self._absorb = library.available(
            {name: f"rf_latent_absorb_{name}" for name in formats}, kernels.rf_latent_absorb
        )
        self._expand = library.available(
            {name: f"rf_latent_expand_{name}" for name in formats}, kernels.rf_latent_expand
        )
        self._grouped = GroupedProducts(library, geometry, formats, self._arrays.pairs)

    def store(self, step: DeviceStep, kv: Activation, norm: Weight, spec: AttentionSpec) -> None:
        """Does as `Ops.store_latent` says."""
        self._store.launch(
            (kv.rows, 1, 1),
            self._wave,
            **self._rotation(step, spec),
            **self._stored(step, kv, norm, spec),
            stride=kv.stride or kv.features,
        )

    def absorb_and_store(
        self,
        step: DeviceStep,
        q: Activation,
        kv: Activation,
        k_b: Weight,
        norm: Weight,
        spec: AttentionSpec,
    ) -> Activation:
        """Does as `Ops.absorb_and_store` says."""
        layer, latent = self._config.layers[spec.layer], self._latent(spec)
        heads, matrix = layer.num_heads, part_of(k_b).matrix
        assert self._arena.rotated is not None
        rows = self._arena.rotated.float16(q.rows, layer.query_features)
        queries: dict[str, Any] = {
            "q": f32_of(q),
            "q_stride": q.stride or q.features,
            "rows": rows,
            "chosen": self._arrays.chosen,
            "weights": self._arrays.weights,
            "heads": heads,
            "plain_dim": latent.plain_dim,
        }
        out = Activation(self._arena.rotated, q.rows, layer.query_features, f16=rows)
        if step.variant.rounds_products and self._absorbs_at_once(q, matrix):
            self._absorb[matrix.format.name].launch(
                (q.rows * heads, matrix.stored_rows // GEMV_OUTPUTS + 2, 1),
                gemv_threads(matrix.quant_blocks),
                weight=matrix.data,
                head_bytes=matrix.nbytes,
                **queries,
                **self._rotation(step, spec),
                **self._stored(step, kv, norm, spec),
                kv_stride=kv.stride or kv.features,
            )
            return out
        self.store(step, kv, norm, spec)
        many = self._is_many(q.rows)
        plain = empty(self._arrays.plain, q.rows * heads, latent.plain_dim, half=many)
        self._queries.launch(
            (q.rows, ceil_div(heads, _THREADS // self._wave), 1),
            _THREADS,
            out=plain,
            rank=latent.rank,
            **queries,
            **self._rotation(step, spec),
        )
        to = rows.first(q.rows * heads, layer.key_dim)
        if many:
            self._multiply_many(plain, matrix, to, latent.rotary_dim)
        else:
            products = self._arrays.products.first(plain.rows, latent.rank)
            self._multiply_few(plain, matrix, products)
            self._join_rows(products, None, to, latent.rotary_dim)
        return out

    def expand(
        self, step: DeviceStep, x: Activation, v_b: Weight, spec: AttentionSpec
    ) -> Activation:
        """Does as `Ops.expand` says."""
        layer, latent = self._config.layers[spec.layer], self._latent(spec)
        heads, matrix, many = layer.num_heads, part_of(v_b).matrix, self._is_many(x.rows)
        out = empty(self._arrays.expanded, x.rows, layer.latent_attended_features, half=many)
        pairs = Activation(
            x.arrays,
            x.rows * heads,
            latent.rank,
            f32=x.f32,
            f16=x.f16,
            q=x.q,
            q_scale=x.q_scale,
            q_lo_offset=x.q_lo_offset,
        )
        if many:
            to = f16_of(out).first(x.rows * heads, latent.value_dim)
            self._multiply_many(pairs, matrix, to, 0)
        elif step.variant.rounds_products and self._rounds(x.rows, matrix):
            self._products.forms.give_int8(out)
            self._expand[matrix.format.name].launch(
                (pairs.rows, matrix.out_features // QUANT_BLOCK, 1),
                TILES_AT_ONCE * gemv_threads(matrix.quant_blocks),
                weight=matrix.data,
                **self._products.forms.multiplied(pairs, matrix),
                out=out,
                head_bytes=matrix.nbytes,
                heads=heads,
                out_features=matrix.out_features,
                quant_blocks=matrix.quant_blocks,
            )
        else:
            self._multiply_few(pairs, matrix, f32_of(out))
        return out

    def _rotation(self, step: DeviceStep, spec: AttentionSpec) -> dict[str, Any]:
        """Returns how what rotates does, as kernels take it."""
        table = self._tables[spec.local_rope]
        return {
            "cosine": table.cos,
            "sine": table.sin,
            "positions": step.inputs.positions,
            "rotary_dim": self._latent(spec).rotary_dim,
            "neox": self._neox(spec),
        }

    def _stored(
        self, step: DeviceStep, kv: Activation, norm: Weight, spec: AttentionSpec
    ) -> dict[str, Any]:
        """Returns what is stored and where, as kernels take it."""
        rank, cache = self._latent(spec).rank, self._caches[spec.layer]
        return {
            "kv": f32_of(kv),
            "norm": vector_of(norm, rank),
            "slots": step.inputs.slots,
            "cache": cache.keys,
            "scale": cache.key_scale,
            "rank": rank,
            "eps": self._config.norm_eps,
        }

    def _absorbs_at_once(self, q: Activation, matrix: Matrix) -> bool:
        """Returns whether one launch makes queries to rows of the cache, and stores rows."""
        return (
            self._are_few(q.rows, matrix, self._absorb)
            and matrix.in_features <= MOST_PLAIN_DIM
            and (q.stride or q.features) % _LOADED == 0
        )

    def _rounds(self, rows: int, matrix: Matrix) -> bool:
        """Returns whether one launch multiplies results of heads and rounds what that makes."""
        threads = TILES_AT_ONCE * gemv_threads(matrix.quant_blocks)
        return (
            self._are_few(rows, matrix, self._expand)
            and matrix.out_features % QUANT_BLOCK == 0
            and threads <= GEMV_THREADS
        )

    def _are_few(self, rows: int, matrix: Matrix, kernels: Mapping[str, Kernel[...]]) -> bool:
        """Returns whether one of these kernels takes so many tokens, in one slice each."""
        is_one = self._products.slices == 1
        return is_one and not self._is_many(rows) and matrix.format.name in kernels

    def _latent(self, spec: AttentionSpec) -> LatentConfig:
        latent = self._config.layers[spec.layer].latent
        assert latent is not None
        return latent

    def _neox(self, spec: AttentionSpec) -> int:
        return int(self._config.rope_of(local=spec.local_rope).style is RopeStyle.NEOX)

    def _is_many(self, tokens: int) -> bool:
        return tokens > self._products.gemv_rows

    def _multiply_few(self, x: Activation, matrix: Matrix, out: DeviceArray) -> None:
        """Multiplies pairs with the matrices of their heads: float32 [pairs, out_features]."""
        self._few[matrix.format.name].launch(
            (x.rows, matrix.stored_rows // GEMV_OUTPUTS, 1),
            gemv_threads(matrix.quant_blocks),
            weight=matrix.data,
            places=matrix.places,
            **self._products.forms.multiplied(x, matrix),
            chosen=self._arrays.chosen,
            weights=self._arrays.weights,
            bias=None,
            out=out,
            expert_bytes=matrix.nbytes,
            rows=x.rows,
            num_chosen=1,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
        )

    def _multiply_many(self, x: Activation, matrix: Matrix, out: DeviceArray, offset: int) -> None:
        """Does so in groups; writes halves to rows of `out`, from a column on."""
        halves = f16_of(x).first(x.rows, x.features)
        arrays, heads = self._arrays, matrix.num_experts
        at_once = max(GROUPED_HEADS // heads, 1) * heads
        for start in range(0, x.rows, at_once):
            stop = min(start + at_once, x.rows)
            pairs = stop - start
            tile = self._grouped.sort(arrays.chosen.rows(start, stop), pairs, 1, matrix)
            products = arrays.products.first(pairs, matrix.out_features)
            self._grouped.multiply(pairs, matrix, tile, halves.rows(start, stop), out=products)
            self._join_rows(products, arrays.pairs.places, out.rows(start, stop), offset)

    def _join_rows(
        self, x: DeviceArray, places: DeviceArray | None, out: DeviceArray, offset: int
    ) -> None:
        rows, columns = x.shape
        self._join.launch(
            (ceil_div(rows * columns // 4, _THREADS), 1, 1),
            _THREADS,
            x=x,
            places=places,
            out=out,
            rows=rows,
            columns=columns,
            stride=out.shape[1],
            offset=offset,
        )
