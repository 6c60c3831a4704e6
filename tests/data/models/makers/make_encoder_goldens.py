"""Records what Transformers and llama.cpp compute for the tiny encoders.

Run manually from the root of the repository, with torch, transformers and llama-cpp-python, for
all models or those that are named:

    python -m tests.data.models.makers.make_encoder_goldens [NAME...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.models.text.tiny_encoders import (
    ENCODERS,
    GOLDEN_ROWS,
    LENGTHS,
    LONG_PROMPT,
    PROMPT,
    TinyEncoder,
    hf_weights,
    write_encoder,
)

# Not among the tools of this project, so type checking must not need them.
torch = import_module("torch")
transformers = import_module("transformers")

GOLDENS = Path(__file__).parents[1] / "goldens/encoder_goldens.json"


def build(model: TinyEncoder) -> Any:
    """Transformers' network with the recipe's weights."""
    config = getattr(transformers, f"{model.hf_class}Config")(
        **model.config, **{model.eps_key: 1e-12}, attn_implementation="eager"
    )
    network = getattr(transformers, model.network)(config).eval()
    weights = {
        name: torch.from_numpy(value)
        for name, value in hf_weights(model).items()
        if "/" not in name
    }
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert all("pooler" in name for name in missing), missing
    return network


def golden(model: TinyEncoder, folder: Path) -> dict[str, Any]:
    """States of some tokens, or the scores; and the prompt's embedding by llama.cpp."""
    if model.is_jina:
        return {"llama_cpp": rounded(embed(model, folder))}
    network = build(model)
    if model.is_gemma:
        prompts = [LONG_PROMPT[:length] for length in LENGTHS]
        return {
            "embeddings": [rounded(embedding(model, network, prompt)) for prompt in prompts],
            "llama_cpp": [rounded(embed(model, folder, prompt)) for prompt in prompts],
        }
    with torch.no_grad():
        output = network(torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)))
    found: dict[str, Any] = {"llama_cpp": rounded(embed(model, folder))}
    if model.ranks:
        found["scores"] = rounded(output.logits[0].numpy())
    else:
        states = output.last_hidden_state[0].numpy()
        found["states"] = [rounded(states[row]) for row in GOLDEN_ROWS]
        found["mean"] = rounded(states.mean(axis=0))
    return found


def embedding(model: TinyEncoder, network: Any, prompt: tuple[int, ...]) -> Any:
    """The mean of the states of a prompt times both matrices, as Sentence-Transformers has it."""
    with torch.no_grad():
        states = network(torch.tensor([prompt])).last_hidden_state[0].numpy()
    weights = hf_weights(model)
    inner = weights["2_Dense/linear.weight"] @ states.mean(axis=0)
    return weights["3_Dense/linear.weight"] @ inner


def embed(model: TinyEncoder, folder: Path, prompt: tuple[int, ...] = PROMPT) -> Any:
    """The prompt's pooled state by llama.cpp, or its scores; not normalised."""
    llama_cpp = import_module("llama_cpp")
    longest = model.config["max_position_embeddings"]
    llama = llama_cpp.Llama(
        str(write_encoder(model, folder, partial(as_llama_cpp_reads, model))),
        embedding=True,
        n_ctx=longest,
        n_batch=longest,
        n_ubatch=longest,
        n_threads=1,
        pooling_type=4 if model.ranks else -1,
        verbose=False,
    )
    batch = llama._batch
    batch.reset()
    batch.add_sequence(list(prompt), 0, True)
    llama._ctx.encode(batch)
    pointer = llama_cpp.llama_get_embeddings_seq(llama._ctx.ctx, 0)
    size = model.config["num_labels"] if model.ranks else model.config["hidden_size"]
    return np.ctypeslib.as_array(pointer, (size,)).copy()


def as_llama_cpp_reads(model: TinyEncoder, name: str, weight: Any) -> Any:
    """The weight, with the gate first: there llama.cpp looks for it, but Jina's code model has it
    behind the other half (`JinaBertGLUMLP` of jinaai/jina-bert-v2-qk-post-norm)."""
    if model.hf_class != "JinaBertCode" or "ffn_up" not in name:
        return weight
    up, gate = np.split(weight, 2)
    return np.concatenate([gate, up])


def rounded(values: Iterable[float]) -> list[float]:
    """Seven significant digits: what float32 holds."""
    return [float(f"{value:.7g}") for value in values]


def main() -> None:
    wanted = sys.argv[1:] or [model.name for model in ENCODERS]
    goldens = json.loads(GOLDENS.read_text())
    versions = goldens.pop("about")
    with tempfile.TemporaryDirectory() as folder:
        found = {m.name: golden(m, Path(folder)) for m in ENCODERS if m.name in wanted}
    goldens |= found
    modules = [torch, transformers, np, *filter(None, [sys.modules.get("llama_cpp")])]
    versions |= {module.__name__: module.__version__ for module in modules}
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in goldens.items()]
    lines.insert(0, f'"about": {json.dumps(versions)}')
    GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{GOLDENS}: {GOLDENS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
