"""Records what llama.cpp says with random adapters of SmolLM2.

Run manually from the root of the repository, with llama-cpp-python installed. The weights are
written as float32 first, so that llama.cpp does not round activations.

    python -m tests.data.models.makers.make_adapter_oracle SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge.gguf.reader import open_gguf
from tests.data.models.text.tiny_adapters import write_random_adapter
from tests.support.files.gguf_writer import write_gguf

# Not among the tools of this project, so type checking must not need it.
llama_cpp = import_module("llama_cpp")

ORACLE = Path(__file__).parents[1] / "oracle/smollm2_adapters.json"
PROMPT = (504, 3575, 282, 4649, 314)  # "The capital of France is"
SEEDS = (1, 2)
COUNT = 24


def as_float32(model: Path, folder: Path) -> Path:
    """The model with float32 weights."""
    with open_gguf(model) as file:
        tensors: dict[str, Any] = {
            name: tensor.to_float32() for name, tensor in file.tensors.items()
        }
        return write_gguf(folder / "float32.gguf", dict(file.metadata), tensors)


def log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """In float64."""
    exact = logits.astype(np.float64) - logits.max()
    result: npt.NDArray[np.float64] = exact - np.log(np.exp(exact).sum())
    return result


def continuation(model: Path, adapter: Path | None) -> dict[str, Any]:
    """Greedy tokens, how clear each choice was, and the first step's most probable tokens."""
    llama = llama_cpp.Llama(
        str(model),
        lora_path=str(adapter) if adapter else None,
        n_ctx=64,
        n_threads=2,
        logits_all=True,
        verbose=False,
    )
    tokens, ids, gaps, top10 = list(PROMPT), [], [], []
    for step in range(COUNT):
        llama.eval(tokens)
        logprobs = log_softmax(llama.scores[llama.n_tokens - 1])
        order = np.argsort(-logprobs)[:10]
        if step == 0:
            top10 = [(int(token), round(float(logprobs[token]), 5)) for token in order]
        ids.append(int(order[0]))
        gaps.append(round(float(logprobs[order[0]] - logprobs[order[1]]), 5))
        tokens = ids[-1:]
    return {"prompt_ids": PROMPT, "top10": top10, "ids": ids, "gaps": gaps}


def main(model: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = as_float32(model, folder)
        found = {
            str(seed): continuation(
                plain, write_random_adapter(folder / f"{seed}.gguf", model, seed)
            )
            for seed in SEEDS
        }
    ORACLE.write_text(json.dumps(found) + "\n")
    print(f"{ORACLE}: {ORACLE.stat().st_size} bytes; llama-cpp-python {llama_cpp.__version__}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
