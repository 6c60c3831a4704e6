"""The metadata of an encoder becomes its configuration."""

from __future__ import annotations

from dataclasses import replace

from rocmforge.errors import UnsupportedArchitecture, UnsupportedTensor
from rocmforge.gguf.config.model import ConfigReader
from rocmforge.gguf.names import SCORES
from rocmforge.models.config import ModelConfig, NormKind
from rocmforge.models.families import FAMILIES
from rocmforge.models.pooling import PoolingType


class EncoderConfigReader(ConfigReader):
    """Reads the keys of an encoder."""

    def read(self) -> ModelConfig:
        """Returns the configuration; raises UnsupportedTensor, too, for a ranker without a head."""
        config = super().read()
        layer, is_of_bert = config.layers[0], self._family.norm is NormKind.LAYER
        for suffix, value, expected in (
            ("attention.head_count_kv", layer.num_kv_heads, layer.num_heads),
            ("attention.key_length", layer.key_dim, config.hidden_size // layer.num_heads),
        ):
            if value != expected and is_of_bert:
                raise self._bad(suffix, f"{value} where such encoders have {expected}")
        if config.attention_softcap is not None:
            raise self._bad("attn_logit_softcapping", "capped scores of encoders are not supported")
        if config.pooling is not PoolingType.RANK:
            return config
        if SCORES not in self._file.tensors:
            raise UnsupportedTensor(SCORES, "missing, although the file says that the model ranks")
        # llama.cpp drops the first axis of a matrix with one row when it writes a file.
        shape = self._file.tensors[SCORES].shape
        return replace(config, num_scores=shape[0] if len(shape) == 2 else 1)

    def _refuse_unsupported(self) -> None:
        key = self._key("attention.causal")
        if self._file.get_bool(key, False):
            raise UnsupportedArchitecture(
                f"{self._name} with causal attention ({key})", self._known
            )
        if self._pooling() is PoolingType.RANK and "head.scores" not in self._family.may_have:
            raise UnsupportedArchitecture(
                f"{self._name} with a classification head ({SCORES})",
                tuple(name for name in self._known if "head.scores" in FAMILIES[name].may_have),
            )

    def _pooling(self) -> PoolingType:
        """Returns what the model was trained for.

        Files of rankers may not say so: then it is the head that tells. Sentence-Transformers takes
        the mean of a model that says nothing (Reimers and Gurevych 2019).
        """
        declared = super()._pooling()
        if declared is not PoolingType.NONE:
            return declared
        return PoolingType.RANK if SCORES in self._file.tensors else PoolingType.MEAN

    def _seen(self, window: int, context: int) -> int:
        """Returns a window of ours. That of the file counts the tokens to both sides."""
        if window == 1:
            raise self._bad("attention.sliding_window", f"{window} is not a window")
        return min(window // 2, context) + 1
