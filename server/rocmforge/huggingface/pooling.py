"""The pooling of a folder, by the files of Sentence-Transformers and the class of the model."""

from __future__ import annotations

from typing import Final

from rocmforge.errors import BadFolder
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.pooling import PoolingType

LOGIT_SCORE: Final = "LogitScore"
_MODULES: Final = "modules.json"
_POOLING: Final = "Pooling"
_BY_FLAG: Final = {
    "pooling_mode_cls_token": PoolingType.CLS,
    "pooling_mode_mean_tokens": PoolingType.MEAN,
    "pooling_mode_lasttoken": PoolingType.LAST,
    "pooling_mode_max_tokens": None,
    "pooling_mode_mean_sqrt_len_tokens": None,
    "pooling_mode_weightedmean_tokens": None,
}
_BY_NAME: Final = {
    "cls": PoolingType.CLS,
    "mean": PoolingType.MEAN,
    "lasttoken": PoolingType.LAST,
}


def read_pooling(folder: Folder, config: JsonObject) -> PoolingType:
    """Returns what the model was trained for; NONE if the folder does not say.

    Raises:
        BadFolder: It asks for something that we do not have, or a file is wrong.
    """
    if any(name.endswith("ForSequenceClassification") for name in architectures(config)):
        return PoolingType.RANK
    found = PoolingType.NONE
    for module in folder.json_objects(_MODULES) or ():
        kind = _kind(module)
        path = module.get_str("path", "")
        match kind:
            case "Transformer" if path in ("", "."):
                pass
            case kind if kind == _POOLING:
                found = _pooling(folder)
            case kind if kind == LOGIT_SCORE:
                found = PoolingType.RANK
            case "Normalize":  # embeddings are normalised in any case
                pass
            case _:
                raise module.bad("type", f"a module {kind!r} in {path!r} is not supported")
    return found


def architectures(config: JsonObject) -> tuple[str, ...]:
    """Returns the names of the classes that the model was saved from."""
    return config.get_strings("architectures") or ()


def module_config(folder: Folder, kind: str) -> JsonObject | None:
    """Returns the configuration of the last module of a kind; None if there is none.

    Raises:
        BadFolder: It is missing, or a file is wrong.
    """
    paths = [
        module.get_str("path", "")
        for module in folder.json_objects(_MODULES) or ()
        if _kind(module) == kind
    ]
    if not paths:
        return None
    config = folder.json(f"{paths[-1]}/config.json")
    if config is None:
        raise folder.bad(f"{_MODULES} names {paths[-1]}/config.json, which is missing")
    return config


def _kind(module: JsonObject) -> str:
    return module.get_str("type").rpartition(".")[2]


def _pooling(folder: Folder) -> PoolingType:
    config = module_config(folder, _POOLING)
    assert config is not None
    if config.has("pooling_mode"):
        wanted = [_BY_NAME.get(config.get_str("pooling_mode"))]
    else:
        wanted = [kind for flag, kind in _BY_FLAG.items() if config.get_bool(flag, False)]
    if len(wanted) != 1 or wanted[0] is None:
        raise _unknown(config)
    return wanted[0]


def _unknown(config: JsonObject) -> BadFolder:
    return config.bad(
        "pooling_mode",
        "the pooling is not supported; it may be cls, mean, or that of the last token",
    )
