"""Records what llama.cpp computes for the tiny models with experts: tokens, log-probabilities.

Run manually from the root of the repository, with llama-cpp-python 0.3.36 installed, for all models
or those that are named:

    python -m tests.data.models.makers.make_llama_cpp_goldens [NAME...]

Install it from its source archive without the two lines of ggml/src/ggml-cpu/vec.h that define
GGML_GELU_FP16 and GGML_GELU_QUICK_FP16: with them GELU is looked up in a table of halves, and what
lies near the middle of two halves is another one on another processor.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.data.models.goldens.llama_cpp_goldens import (
    CONTINUED,
    GOLDENS,
    MODELS,
    write_for_llama_cpp,
)
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT

# Not among the tools of this project, so type checking must not need it.
llama_cpp = import_module("llama_cpp")
_FLOAT32 = 0  # GGML_TYPE_F32


def golden(model: TinyModel) -> dict[str, list[Any]]:
    """The log-probability of each token of the prompt but the first, and a greedy continuation."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_for_llama_cpp(model, Path(folder))
        parameters = llama_cpp.llama_model_default_params()
        network = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        assert network, path
        context = llama_cpp.llama_init_from_model(network, context_parameters())
        assert context
        vocab_size = model.config["vocab_size"]
        logits = decode(context, list(PROMPT), 0, vocab_size)
        known = [float(logits[row][token]) for row, token in enumerate(PROMPT[1:])]
        tokens: list[int] = []
        drawn: list[float] = []
        last = logits[-1]
        while len(tokens) < CONTINUED:
            tokens.append(int(np.argmax(last)))
            drawn.append(float(last[tokens[-1]]))
            last = decode(context, tokens[-1:], len(PROMPT) + len(tokens) - 1, vocab_size)[0]
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(network)
    return {
        "prompt_logprobs": [round(value, 5) for value in known],
        "tokens": tokens,
        "logprobs": [round(value, 5) for value in drawn],
    }


def context_parameters() -> Any:
    """The parameters of an exact computation: float32 in the cache, attention step by step."""
    found = llama_cpp.llama_context_default_params()
    found.n_ctx, found.n_batch, found.n_ubatch = 128, 128, 128
    found.n_threads = found.n_threads_batch = 1
    found.type_k = found.type_v = _FLOAT32
    found.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return found


def decode(context: Any, tokens: list[int], start: int, vocab_size: int) -> npt.NDArray[np.float64]:
    """Log-probabilities after each of some tokens, which begin at a position: [tokens, V]."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index], batch.pos[index] = token, start + index
        batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, True
    assert llama_cpp.llama_decode(context, batch) == 0
    pointer = llama_cpp.llama_get_logits(context)
    found = np.ctypeslib.as_array(
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (len(tokens), vocab_size)
    ).astype(np.float64)
    llama_cpp.llama_batch_free(batch)
    return np.asarray(found - np.log(np.exp(found).sum(axis=1, keepdims=True)))


def record(path: Path, makers: Mapping[str, Callable[[], object]]) -> None:
    """Writes what is made for each name of the command line, or for all; keeps that of others."""
    wanted = sys.argv[1:] or [*makers]
    goldens = json.loads(path.read_text()) if path.exists() else {}
    llama_cpp.llama_backend_init()
    goldens |= {name: make() for name, make in makers.items() if name in wanted}
    goldens["about"] = {"llama-cpp-python": llama_cpp.__version__}
    lines = [f"{json.dumps(name)}: {json.dumps(goldens[name])}" for name in ("about", *makers)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    record(GOLDENS, {model.name: partial(golden, model) for model in MODELS})
