"""The pooling of a folder, by the files of Sentence-Transformers and the class of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import BadFolder, UnsupportedTensor
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.huggingface.files.shards import WEIGHTS, map_file
from rocmforge.huggingface.weights import tensors_of
from rocmforge.models.config import ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.layouts import dense_product
from rocmforge.models.pooling import PoolingType

LOGIT_SCORE: Final = "LogitScore"
_MODULES: Final = "modules.json"
_POOLING: Final = "Pooling"
_DENSE: Final = "linear.weight"
_MOST_DENSE: Final = 2
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
            # Embeddings are normalised in any case; see `read_dense` for matrices.
            case "Normalize" | "Dense":
                pass
            case _:
                raise module.bad("type", f"a module {kind!r} in {path!r} is not supported")
    return found


def read_dense(folder: Folder, model: ModelConfig) -> Tensor | None:
    """Returns the matrix that makes embeddings of pooled states; None if there is none.

    Raises:
        ModelFileNotFound: Its file is missing.
        BadFolder: The model is not of a family that has some, or they are not plain matrices.
        UnsupportedTensor: One has another shape or type.
    """
    found: list[Tensor] = []
    for module in folder.json_objects(_MODULES) or ():
        if _kind(module) != "Dense":
            continue
        path = module.get_str("path", "")
        if "dense" not in FAMILIES[model.architecture].may_have or len(found) == _MOST_DENSE:
            raise module.bad(
                "type", f"a module 'Dense' in {path!r} is not supported in {model.architecture}"
            )
        found.append(_matrix(folder, path))
    return dense_product(model, found) if found else None


def _matrix(folder: Folder, path: str) -> Tensor:
    """Returns the matrix of a module that is nothing else."""
    config = folder.json(f"{path}/config.json")
    if config is None:
        raise folder.bad(f"{_MODULES} names {path}/config.json, which is missing")
    act = config.get_str("activation_function", "torch.nn.modules.activation.Tanh")
    if not act.endswith(".Identity"):
        raise config.bad("activation_function", f"{act!r} is not supported, only Identity")
    if config.get_bool("bias", True):
        raise config.bad("bias", "matrices with a bias behind the pooling are not supported")
    for name, dtype, tensor in tensors_of((map_file(folder, f"{path}/{WEIGHTS}"),)):
        if tensor is None or dtype == "U8" or name != _DENSE:
            raise UnsupportedTensor(f"{path}: {name}", f"{dtype}, where {_DENSE} should be")
        return replace(tensor, name=f"{path}: {name}")
    raise UnsupportedTensor(f"{path}: {_DENSE}", "missing")


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
