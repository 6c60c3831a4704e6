"""The keys of layers that remember states in place of attention."""

from __future__ import annotations

from rocmforge.gguf.config.keys import KeyReader
from rocmforge.models.layer_config import (
    ConvolutionConfig,
    DeltaConfig,
    LayerConfig,
    MambaConfig,
    layer_without_attention,
)


class RecurrentReader(KeyReader):
    """Reads them, by the model's family."""

    def read(self, hidden_size: int, num_layers: int, norm_eps: float) -> list[LayerConfig | None]:
        """Returns the layers that have no attention, without their networks; None for others."""
        family = self._family
        if not family.has_states:
            return [None] * num_layers
        if family.has_delta:
            delta = self._delta()
            layer = layer_without_attention(
                self._convolution("ssm.conv_kernel", delta.mixed_features), delta=delta
            )
            flags = self._layer_flags("attention.recurrent_layers", num_layers)
            if flags is None:
                period = self._positive("full_attention_interval", 4)
                flags = [(index + 1) % period != 0 for index in range(num_layers)]
            return [layer if is_recurrent else None for is_recurrent in flags]
        if family.has_mamba:
            mamba = self._mamba(norm_eps)
            convolution = self._convolution("ssm.conv_kernel", mamba.mixed_features)
            layer = layer_without_attention(convolution, mamba=mamba)
        else:
            layer = layer_without_attention(self._convolution("shortconv.l_cache", hidden_size))
        found: list[LayerConfig | None] = []
        counts = self._counts("attention.head_count_kv", num_layers, 1)
        for count, has_network in zip(counts, self._have_networks(num_layers), strict=True):
            if family.has_one_part and has_network:
                found.append(layer_without_attention())
            else:
                found.append(None if count else layer)
        return found

    def _convolution(self, suffix: str, channels: int) -> ConvolutionConfig:
        width = self._positive(suffix)
        if width < 2:
            raise self._bad(suffix, f"a convolution of {width} inputs has no state")
        return ConvolutionConfig(channels=channels, width=width)

    def _heads(self) -> tuple[int, int]:
        """Returns how many heads a layer has, and the elements of each."""
        heads, inner = self._positive("ssm.time_step_rank"), self._positive("ssm.inner_size")
        if inner % heads:
            raise self._bad("ssm.inner_size", f"{heads} heads do not divide {inner}")
        return heads, inner // heads

    def _mamba(self, norm_eps: float) -> MambaConfig:
        heads, size = self._heads()
        mamba = MambaConfig(
            num_heads=heads,
            head_dim=size,
            num_groups=self._positive("ssm.group_count"),
            state_size=self._positive("ssm.state_size"),
            norm_eps=norm_eps,
        )
        if (problem := mamba.problem()) is not None:
            raise self._bad("ssm.group_count", problem)
        return mamba

    def _delta(self) -> DeltaConfig:
        heads, size = self._heads()
        delta = DeltaConfig(
            num_key_heads=self._positive("ssm.group_count"),
            num_value_heads=heads,
            key_dim=self._positive("ssm.state_size"),
            value_dim=size,
            is_tiled=self._family.tiled_values,
        )
        if (problem := delta.problem()) is not None:
            raise self._bad("ssm.time_step_rank", problem[1])
        return delta
