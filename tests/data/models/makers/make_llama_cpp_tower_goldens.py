"""Records what llama.cpp computes for tiny models that take images, from pixels to an answer.

Its library for images (libmtmd) reads the same model and mmproj. Run manually from the root of the
repository, with llama-cpp-python 0.3.36 installed as make_llama_cpp_goldens.py says, for all models
or those that are named:

    python -m tests.data.models.makers.make_llama_cpp_tower_goldens [NAME...]
"""

from __future__ import annotations

import ctypes
import tempfile
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.data.models.goldens.llama_cpp_towers import (
    COLUMNS,
    GOLDENS,
    MODELS,
    ROWS,
    write_for_llama_cpp,
)
from tests.data.models.makers.make_llama_cpp_goldens import context_parameters, decode, record
from tests.data.models.towers.tiny_pixtral import BREAK
from tests.data.models.towers.tiny_tower import PARTS, TinyTower
from tests.data.models.towers.tower_files import hf_weights, pixels

# Not among the tools of this project, so type checking must not need them.
llama_cpp = import_module("llama_cpp")
mtmd = import_module("llama_cpp.mtmd_cpp")

GENERATED = 12
_IMAGE = 1  # MTMD_INPUT_CHUNK_TYPE_IMAGE


def golden(model: TinyTower) -> dict[str, Any]:
    """Rows of each tile, and a greedy continuation of the prompt with log-probabilities."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = write_for_llama_cpp(model, Path(folder), classes_last=True)
        parameters = llama_cpp.llama_model_default_params()
        network = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        assert network, path
        stack.callback(llama_cpp.llama_model_free, network)
        context = llama_cpp.llama_init_from_model(network, context_parameters())
        assert context
        stack.callback(llama_cpp.llama_free, context)
        mmproj = str(next(path.parent.glob("mmproj*"))).encode()
        tower = mtmd.mtmd_init_from_file(mmproj, network, tower_parameters())
        assert tower, mmproj
        stack.callback(mtmd.mtmd_free, tower)
        return computed(model, network, context, tower)


def tower_parameters() -> Any:
    """The parameters of an exact computation of a tower."""
    found = mtmd.mtmd_context_params_default()
    found.use_gpu, found.print_timings, found.warmup, found.n_threads = False, False, False, 1
    found.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return found


def computed(model: TinyTower, network: Any, context: Any, tower: Any) -> dict[str, Any]:
    """What `golden` says, of a model that is loaded."""
    vocab_size = model.config["text_config"]["vocab_size"]
    width = llama_cpp.llama_model_n_embd_inp(network)
    position, rows, last = 0, [], np.zeros(0)
    for part in PARTS:
        if isinstance(part, int):
            found, position = show(model, part, context, tower, width, position)
            rows.append([rounded(found[row][:COLUMNS]) for row in ROWS])
            continue
        last = decode(context, list(part), position, vocab_size)[-1]
        position += len(part)
    tokens: list[int] = []
    drawn: list[float] = []
    while len(tokens) < GENERATED:
        tokens.append(int(np.argmax(last)))
        drawn.append(float(last[tokens[-1]]))
        last = decode(context, tokens[-1:], position, vocab_size)[0]
        position += 1
    return {
        "rows": rows,
        "tokens": tokens,
        "logprobs": [round(value, 5) for value in drawn],
    }


def show(
    model: TinyTower, tile: int, context: Any, tower: Any, width: int, position: int
) -> tuple[npt.NDArray[np.float32], int]:
    """Puts a tile behind what the context holds; returns its rows and the next position.

    Where llama.cpp makes several tiles of it, the first is taken: the whole picture.
    """
    picture = pixels(model, tile)
    height, across = picture.shape[:2]
    data = np.ascontiguousarray(picture).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    bitmap = mtmd.mtmd_bitmap_init(across, height, data)
    chunks = mtmd.mtmd_input_chunks_init()
    part = mtmd.mtmd_input_part(None, bitmap)
    parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
    assert mtmd.mtmd_tokenize_from_parts(tower, chunks, parts, 1, False) == 0
    found = range(mtmd.mtmd_input_chunks_size(chunks))
    every = [mtmd.mtmd_input_chunks_get(chunks, index) for index in found]
    chunk = next(each for each in every if mtmd.mtmd_input_chunk_get_type(each) == _IMAGE)
    assert mtmd.mtmd_encode_chunk(tower, chunk) == 0
    count = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
    rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(tower), (count, width)).copy()
    ends = line_ends(model, across, count)
    if len(ends):  # zero times what was in memory before, which may be no number
        rows[ends] = hf_weights(model)["model.language_model.embed_tokens.weight"][BREAK]
    end = ctypes.c_int32()
    address = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    nothing = mtmd.mtmd_helper_post_decode_callback()
    assert not mtmd.mtmd_helper_decode_image_chunk(
        tower, context, chunk, address, position, 0, 128, ctypes.byref(end), nothing, None
    )
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_bitmap_free(bitmap)
    return np.delete(rows, ends, axis=0), end.value


def line_ends(model: TinyTower, across: int, count: int) -> npt.NDArray[np.int64]:
    """The rows behind each line but the last, which in Pixtral's tower are a token's embedding."""
    if not model.line_ends:
        return np.arange(0)
    vision = model.config["vision_config"]
    columns = across // (vision["patch_size"] * model.config.get("spatial_merge_size", 1))
    return np.arange(columns, count, columns + 1)


def rounded(values: npt.NDArray[np.float32]) -> list[float]:
    """Five significant digits: GELU from a table of halves has fewer."""
    return [float(f"{value:.5g}") for value in values]


if __name__ == "__main__":
    record(GOLDENS, {model.name: partial(golden, model) for model in MODELS})
