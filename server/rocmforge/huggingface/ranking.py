"""Decoders that rank: with a matrix of their own, or by the logits of words such as yes and no.

The former are saved from a class `...ForSequenceClassification`, the latter by
Sentence-Transformers with a module `LogitScore`
(https://sbert.net/docs/package_reference/cross_encoder/modules.html).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from rocmforge.checkpoint.tensor import Tensor, float32_tensor
from rocmforge.errors import UnsupportedArchitecture, UnsupportedTensor
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.huggingface.name_table import NameTable
from rocmforge.huggingface.pooling import LOGIT_SCORE, module_config
from rocmforge.models.config import ModelConfig

HEAD: Final = "head.scores"
_MATRIX: Final = "score.weight"
_PROMPTS: Final = "config_sentence_transformers.json"


def with_head(names: NameTable) -> NameTable:
    """Returns the names of a decoder's weights with that of a matrix of its own."""
    return replace(names, model=MappingProxyType({**names.model, _MATRIX: HEAD}))


def read_head(folder: Folder, model: ModelConfig, weights: Mapping[str, Tensor]) -> Tensor:
    """Returns the matrix that makes scores of the last token's state, [1 or 2, hidden_size].

    One row is of a matrix of its own; two are those of the output matrix for the word that says
    yes and for the one that says no, which is 0 if there is none.

    Raises:
        UnsupportedArchitecture: It tells classes apart, or its logits are capped.
        UnsupportedTensor: The matrix is missing.
        BadFolder: The words are no tokens.
    """
    head = weights.get(HEAD)
    if head is not None:
        if len(head.shape) == 2 and head.shape[0] != 1:
            raise UnsupportedArchitecture(
                f"{model.architecture} that tells {head.shape[0]} classes apart ({_MATRIX})",
                ("one score (num_labels 1)",),
            )
        return head
    config = module_config(folder, LOGIT_SCORE)
    if config is None:
        raise UnsupportedTensor(_MATRIX, "missing, although the model's class has it")
    if model.logit_softcap is not None:
        raise UnsupportedArchitecture(
            f"{model.architecture} that ranks by capped logits", ("logits without a cap",)
        )
    output = weights.get("output", weights["embedding.token"])
    rows = np.zeros((2, output.shape[1]), np.float32)
    for row, key in enumerate(("true_token_id", "false_token_id")):
        token = config.get_int(key) if row == 0 else config.get_int(key, None)
        if token is None:
            continue
        if not 0 <= token < output.shape[0]:
            raise config.bad(key, f"{token} is no token")
        rows[row] = output.slice(0, token, token + 1).to_float32()[0]
    return float32_tensor(f"rows of {output.name}", rows)


def read_instruction(folder: Folder) -> str | None:
    """Returns what a model is told to look for unless somebody says otherwise; None for nothing.

    Raises:
        BadFolder: A value has the wrong type, or a prompt is missing.
    """
    config = folder.json(_PROMPTS)
    name = None if config is None else config.get_str("default_prompt_name", None)
    if config is None or name is None:
        return None
    prompts: JsonObject = config.get_object("prompts") or config.empty("prompts")
    return prompts.get_str(name)
