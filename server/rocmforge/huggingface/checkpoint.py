"""A folder as a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocmforge.checkpoint.locator import Locator
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import BadAdapter, RocmForgeError, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.huggingface.adapter import is_adapter
from rocmforge.huggingface.config.decoder_types import DECODERS
from rocmforge.huggingface.config.decoders import is_tied, read_decoder
from rocmforge.huggingface.config.encoders import ENCODERS, read_encoder
from rocmforge.huggingface.encoder_names import encoder_names
from rocmforge.huggingface.files.folder import CONFIG, Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.huggingface.files.shards import WeightFile, map_shards
from rocmforge.huggingface.name_table import NameTable
from rocmforge.huggingface.names import decoder_names
from rocmforge.huggingface.pooling import read_dense, read_pooling
from rocmforge.huggingface.ranking import HEAD, read_head, read_instruction, with_head
from rocmforge.huggingface.sampling import read_sampling
from rocmforge.huggingface.tokenizer import (
    SENTENCEPIECE,
    TEMPLATES,
    TOKENIZER,
    describe_tokenizer,
    read_templates,
    read_tokenizer,
)
from rocmforge.huggingface.towers.config import read_tower
from rocmforge.huggingface.towers.opening import has_tower, open_tower
from rocmforge.huggingface.weights import read_weights, tensors_of
from rocmforge.models.checkpoint import Checkpoint, Contents, Identity
from rocmforge.models.config import ModelConfig, with_predictor
from rocmforge.models.families import FAMILIES
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope import RopeFactors
from rocmforge.models.vision.config import VisionConfig
from rocmforge.models.vision.towers import beside_tower
from rocmforge.models.weights import check_weights

GENERATION: Final = "generation_config.json"
_DESCRIBING: Final = (
    *(CONFIG, GENERATION, TOKENIZER, "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json", "modules.json"),
    *("preprocessor_config.json", "processor_config.json"),
    *("config_sentence_transformers.json", SENTENCEPIECE, "added_tokens.json"),
)
_MAX_BYTES: Final = 256 << 20


def open_folder_checkpoint(path: Path, *, predicts: bool = False) -> Checkpoint:
    """Opens a model in a folder; reads headers and configuration only.

    Args:
        path: The folder.
        predicts: Whether its predictor is wanted, if it has one.

    Raises:
        ModelFileNotFound: The folder or a file of it is not there or cannot be read.
        ModelLoadError: A file is broken, or the model cannot be served.
    """
    _refuse_adapter(path)
    folder = Folder(path)
    config = folder.config()
    _refuse_unsupported(config)
    return _Opened(folder, config, map_shards(folder), predicts=predicts).read()


def _refuse_adapter(path: Path) -> None:
    if is_adapter(path):
        raise BadAdapter(
            str(path), f"it is not a model. Serve its base model with --lora NAME={path}"
        )


def _refuse_unsupported(config: JsonObject) -> None:
    kind = config.get_str("model_type")
    if kind not in DECODERS and kind not in ENCODERS:
        raise UnsupportedArchitecture(kind, (*DECODERS, *ENCODERS))
    _refuse_quantised(config)


def _refuse_quantised(config: JsonObject) -> None:
    if (quantised := config.get_object("quantization_config")) is not None:
        method = quantised.get_str("quant_method", "unknown")
        if (config.get_str("model_type"), method) == ("gpt_oss", "mxfp4"):
            return
        raise config.bad(
            "quantization_config",
            f"its weights are quantised ({method}), which is not read. Take the weights of the "
            "original model, or a GGUF file",
        )


class _Opened:
    """An open folder; exists to hold what its parts need."""

    def __init__(
        self,
        folder: Folder,
        config: JsonObject,
        files: tuple[WeightFile, ...],
        *,
        predicts: bool = False,
    ) -> None:
        self._predicts = predicts
        self._folder = folder
        self._config = config
        self._files = files
        self._kind = config.get_str("model_type")

    def read(self) -> Checkpoint:
        folder, pooling = self._folder, read_pooling(self._folder, self._config)
        if self._kind in DECODERS:
            model, factors, names, weights = self._decoder(pooling)
        else:
            model, factors, names, weights = self._encoder(pooling)
        if (dense := read_dense(folder, model)) is not None:
            weights["dense"] = dense
        name_of = self._namer(names)
        check_weights(model, weights, name_of)
        # What the checkpoint keeps must not keep the files mapped.
        config, generation = self._config, folder.json(GENERATION)
        vision, tower = self._tower(model)
        if tower is not None and vision is not None:
            model = beside_tower(model, tower.config, vision)
        return Checkpoint(
            path=folder.path,
            size_bytes=sum(len(file.map) for file in self._files),
            config=model,
            weights=MappingProxyType(weights),
            name_of=name_of,
            rope_factors=factors,
            chat_templates=read_templates(folder),
            has_tokenizer=any(folder.find(name) for name in (TOKENIZER, SENTENCEPIECE)),
            read_tokenizer=lambda: read_tokenizer(folder, config, generation, model.vocab_size),
            identify=lambda: identify_folder(folder.path),
            rank_instruction=read_instruction(folder),
            sampling=read_sampling(generation),
            vision=vision,
            tower=tower,
            locate=Locator((file.path, file.map) for file in self._files),
            release=weights.clear if tower is None else _both(weights.clear, tower.release),
        )

    def _decoder(
        self, pooling: PoolingType
    ) -> tuple[ModelConfig, RopeFactors, NameTable, dict[str, Tensor]]:
        model, rope = read_decoder(self._config, self._folder.name, pooling)
        names, ranks = decoder_names(model), pooling is PoolingType.RANK
        if not model.causal and ranks:
            raise UnsupportedArchitecture(
                f"{model.architecture} with a classification head", ("one for embeddings",)
            )
        if pooling is PoolingType.NONE and not model.causal:
            model = replace(model, pooling=PoolingType.MEAN)
        names = with_head(names) if ranks else names
        text = self._config.get_object("text_config") or self._config
        predicting = text.get_int("num_nextn_predict_layers", 0)
        if self._predicts and FAMILIES[model.architecture].may_predict and predicting < 2:
            of_predictor = names.with_predictor(model.num_layers)
            whole = with_predictor(model)
            if whole.predicts and self._has_projection(of_predictor):
                model, names = whole, of_predictor
        tied = is_tied(self._config)
        weights = read_weights(
            model,
            self._files,
            names,
            is_tied=tied,
            norms_add_one=DECODERS[self._kind].norms_add_one,
            whole_norm=DECODERS[self._kind].whole_norm,
            predicting_layers=predicting - model.predicts,
        )
        has_output = tied or "output" in weights
        if ranks:
            has_output = has_output or HEAD in weights
            weights[HEAD] = read_head(self._folder, model, weights)
        if not has_output and model.causal:
            raise UnsupportedTensor("lm_head.weight", "missing; tie_word_embeddings is false")
        return model, rope.factors, names, weights

    def _encoder(
        self, pooling: PoolingType
    ) -> tuple[ModelConfig, RopeFactors, NameTable, dict[str, Tensor]]:
        ranks = pooling is PoolingType.RANK
        model, first = read_encoder(
            self._config,
            self._folder.name,
            PoolingType.MEAN if pooling is PoolingType.NONE else pooling,
            self._num_scores() if ranks else 0,
        )
        names = encoder_names(model.architecture, ranks=ranks)
        weights = read_weights(model, self._files, names, first_position=first)
        return model, RopeFactors(), names, weights

    def _tower(self, model: ModelConfig) -> tuple[VisionConfig | None, Checkpoint | None]:
        """Returns how the model takes images, and its tower; text parts alone have none."""
        folder = self._folder
        found = read_tower(self._config, folder, model.hidden_size)
        if found is None or not has_tower(self._files):
            return None, None
        vision, config = found
        if not 0 <= vision.placeholder < model.vocab_size:
            raise folder.bad(
                f"the id {vision.placeholder} of the token of images is in no vocabulary"
            )
        tower = open_tower(config, folder, self._files, lambda: identify_folder(folder.path))
        return vision, tower

    def _has_projection(self, names: NameTable) -> bool:
        """Returns whether the files have a predictor."""
        stored = (info.name for file in self._files for info in file.tensors)
        return any(names.find(name) == ("predictor.projection",) for name in stored)

    def _num_scores(self) -> int:
        """Returns the rows of the classification head."""
        for file in self._files:
            for info in file.tensors:
                if info.name in ("classifier.weight", "classifier.out_proj.weight"):
                    return (*info.shape, 1)[0]
        raise UnsupportedTensor("classifier.weight", "missing, although the model's class has it")

    def _namer(self, names: NameTable) -> Callable[[str], str]:
        stored = [info.name for file in self._files for info in file.tensors]
        prefix = names.prefix_of(stored)
        return lambda place: names.name_of(place, prefix)


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


def describe_folder(path: Path) -> Contents:
    """Returns what is in a folder, whether it can be served or not.

    Raises:
        ModelFileNotFound: It has no configuration or no weights, or cannot be read.
        ModelLoadError: It is broken.
    """
    folder = Folder(path)
    config, files = folder.config(), map_shards(folder)
    model, refusal, sampling, vision, tower = None, None, None, None, None
    try:
        _refuse_adapter(path)
        _refuse_unsupported(config)
        with _Opened(folder, config, files, predicts=True).read() as checkpoint:
            model, sampling = checkpoint.config, checkpoint.sampling
            vision = checkpoint.vision
            tower = None if checkpoint.tower is None else checkpoint.tower.config
    except RocmForgeError as error:
        refusal = error.message
    return Contents(
        path=path,
        size_bytes=sum(len(file.map) for file in files),
        gguf_version=None,
        architecture=config.get_str("model_type", "unknown"),
        name=folder.name,
        tensors=tuple(tensor for _, _, tensor in tensors_of(files) if tensor is not None),
        config=model,
        refusal=refusal,
        tokenizer=describe_tokenizer(folder),
        chat_template=read_templates(folder).get("default"),
        sampling=sampling,
        vision=vision,
        tower=tower,
    )


def identify_folder(path: Path) -> Identity:
    """Returns the identity of a folder: of all its files, and of what those hold that describe.

    Raises:
        ModelFileNotFound: There is no such folder, or it cannot be read.
    """
    folder = Folder(path)
    size, modified_ns = folder.state()
    digest = hashlib.sha256()
    for name in (*_DESCRIBING, *folder.files_in(TEMPLATES, "")):
        data = folder.read(name, _MAX_BYTES)
        digest.update(f"{name} {-1 if data is None else len(data)}\n".encode())
        digest.update(data or b"")
    return Identity(size, modified_ns, digest.hexdigest())
