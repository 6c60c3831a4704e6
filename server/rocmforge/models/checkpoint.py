"""An opened model: what a reader of files makes of one, and all that is made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.locator import FilePart
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.checkpoint.tokenizer import TokenizerData
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import Adapter
from rocmforge.models.rope import RopeFactors
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.models.vision.config import VisionConfig

Locate = Callable[[npt.NDArray[np.uint8]], FilePart | None]
"""Returns the file that bytes of a tensor lie in and their offset, to read them there.

None if they are not consecutive bytes of a file.
"""


class Identity(msgspec.Struct, frozen=True):
    """The facts that are remembered of a model's files, which may be replaced while we run."""

    size: int  # bytes
    modified_ns: int
    digest: str  # of what describes tokenizer and architecture


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """Everything in a file or folder that people look at, whether it can be served or not."""

    path: Path
    size_bytes: int
    gguf_version: int | None  # None: it is a folder
    architecture: str
    name: str
    tensors: tuple[Tensor, ...]  # as the files have them
    config: ModelConfig | None  # with a predictor, if there is one; None: it cannot be served
    refusal: str | None  # why
    tokenizer: str
    chat_template: str | None
    sampling: SamplingDefaults | None  # recommended by its maker
    vision: VisionConfig | None = None  # how it takes images; None: it takes none
    tower: ModelConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A model as its files have it: configuration and weights, tokenizer and templates.

    Weights are views of mapped files: bytes are read when they are used.

    Attributes:
        path: The file or folder, for messages.
        size_bytes: Size on disk of all of it.
        config: What the files say of the model.
        weights: The tensors by the names of ours: "embedding.token", "layers.0.attention.q",
            "output_norm", "head.scores" and so on. Weights that the files have fused are parts of
            one tensor; two that share one tensor are there once.
        name_of: Returns the name that the files have, or would have, for a weight of ours.
        rope_factors: Divisors of the rope frequencies.
        chat_templates: Jinja by name: "default", "tool_use", "rerank" and so on.
        rank_instruction: What a decoder that ranks is told to look for, if the files say.
        has_tokenizer: Whether there is one: weights can be used without it.
        read_tokenizer: Returns the tokenizer; raises BadTokenizer for none, or a broken one.
        identify: Returns what tells these files from others later.
        adapters: The LoRA adapters that were asked for, in that order.
        sampling: What the model's maker recommends.
        vision: How it takes images; None: it takes none.
        tower: Makes rows of embeddings of images, if it takes some: a model of its own, without a
            tokenizer, from the same files or one beside them.
        locate: Finds the bytes of a tensor in the files.
        release: Lets go of the weights. Files are unmapped once no view of their data is left.
    """

    path: Path
    size_bytes: int
    config: ModelConfig
    weights: Mapping[str, Tensor]
    name_of: Callable[[str], str]
    rope_factors: RopeFactors
    chat_templates: Mapping[str, str]
    has_tokenizer: bool
    read_tokenizer: Callable[[], TokenizerData]
    identify: Callable[[], Identity]
    adapters: tuple[Adapter, ...] = ()
    rank_instruction: str | None = None
    sampling: SamplingDefaults | None = None  # recommended by its maker
    vision: VisionConfig | None = None
    tower: Checkpoint | None = None
    locate: Locate
    release: Callable[[], None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
