"""The keys of multi-head latent attention."""

from __future__ import annotations

import math
from dataclasses import replace

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.gguf.config.keys import KeyReader
from rocmforge.models.layer_config import LatentConfig, LayerConfig
from rocmforge.models.rope_config import RopeConfig, RopeScalingKind


class LatentReader(KeyReader):
    """Reads them, by the model's family."""

    def read(self) -> LayerConfig:
        """Returns what all layers have in common, without their networks.

        Their heads share a row of the cache. Older files have the sizes of heads as they were
        before matrices were absorbed, newer ones have both.
        """
        suffix = "attention.temperature_scale"
        if scale := self._file.get_float(self._key(suffix), 0.0):
            raise UnsupportedArchitecture(
                f"{self._name} with scores scaled by position, by {scale} ({self._key(suffix)})",
                self._known,
            )
        new = "_mla" if self._key("attention.key_length_mla") in self._file.metadata else ""
        key_dim = self._positive(f"attention.key_length{new}")
        rank, rotary_dim = self._positive("attention.kv_lora_rank"), self._rotary_dim(key_dim)
        if rotary_dim == key_dim:
            raise self._bad("rope.dimension_count", f"all {key_dim} elements of a head rotate")
        query_rank = self._count("attention.q_lora_rank")
        return LayerConfig(
            num_heads=self._positive("attention.head_count"),
            num_kv_heads=1,
            key_dim=rotary_dim + rank,
            value_dim=rank,
            attention_scale=key_dim**-0.5,
            intermediate_size=0,
            latent=LatentConfig(
                query_rank=query_rank,
                rank=rank,
                rotary_dim=rotary_dim,
                plain_dim=key_dim - rotary_dim,
                value_dim=self._positive(f"attention.value_length{new}"),
            ),
        )

    def scale(
        self, layer: LayerConfig, rope: RopeConfig | None
    ) -> tuple[LayerConfig, RopeConfig | None]:
        """Returns layer and rope with YaRN as it is where a file has its multiplier.

        There it changes the scores of all elements, and leaves cosines and sines as they are.
        """
        suffix = "rope.scaling.yarn_log_multiplier"
        # Converters write a tenth of it, of these architectures only.
        multiplier = self._not_negative(suffix) / 0.1
        scaling = None if rope is None else rope.scaling
        if rope is None or scaling is None or scaling.kind is not RopeScalingKind.YARN:
            return layer, rope
        if not multiplier:
            return layer, rope
        own = self._file.get_float(self._key("rope.scaling.attn_factor"), 1.0)
        gain = own * (1 + 0.1 * multiplier * math.log(max(scaling.factor, 1.0)))
        return (
            replace(layer, attention_scale=layer.attention_scale * gain**2),
            replace(rope, scaling=replace(scaling, attention_factor=own)),
        )
