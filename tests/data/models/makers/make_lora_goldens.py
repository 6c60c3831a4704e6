"""Records what PEFT computes for the tiny models with an adapter.

Run manually from the root of the repository, with torch, transformers and peft installed:

    python -m tests.data.models.makers.make_lora_goldens
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np

from tests.data.models.makers.make_goldens import build, rounded
from tests.data.models.text.tiny_adapters import MODELS_WITH_GOLDENS, TinyAdapter, hf_pairs
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import GOLDEN_ROWS, PROMPT, by_name

# Not among the tools of this project, so type checking must not need them.
torch = import_module("torch")
peft = import_module("peft")

GOLDENS = Path(__file__).parents[1] / "goldens/lora_goldens.json"


def golden(model: TinyModel, adapter: TinyAdapter) -> list[list[float]]:
    """Logits after some tokens of the prompt."""
    pairs = hf_pairs(model, adapter)
    config = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=[name.removesuffix(".weight") for name in pairs],
    )
    network = peft.get_peft_model(build(model), config).eval()
    weights = {}
    for name, (a, b) in pairs.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        weights[f"{module}.lora_A.default.weight"] = torch.from_numpy(a)
        weights[f"{module}.lora_B.default.weight"] = torch.from_numpy(b)
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert not [name for name in missing if "lora" in name], missing
    with torch.no_grad():
        logits = network(torch.tensor([PROMPT])).logits[0].numpy()
    return [rounded(logits[row]) for row in GOLDEN_ROWS]


def main() -> None:
    found = {name: golden(by_name(name), TinyAdapter()) for name in MODELS_WITH_GOLDENS}
    versions = {module.__name__: module.__version__ for module in (torch, peft, np)}
    lines = [f"{json.dumps(name)}: {json.dumps(logits)}" for name, logits in found.items()]
    lines.insert(0, f'"about": {json.dumps(versions)}')
    GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{GOLDENS}: {GOLDENS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
