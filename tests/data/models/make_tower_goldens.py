"""Records what Transformers computes for tiny models that take images, from pixels to logits.

Run manually from the root of the repository, with torch and transformers installed:

    python -m tests.data.models.make_tower_goldens
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.models.tiny_towers import (
    GOLDEN_ROWS,
    GOLDEN_TOKENS,
    PARTS,
    PLACEHOLDER,
    TOWERS,
    TinyTower,
    hf_weights,
    pixels,
)

# Not among the tools of this project, so type checking must not need them.
torch = import_module("torch")
transformers = import_module("transformers")

GOLDENS = Path(__file__).with_name("tower_goldens.json")
CLASSES = {
    "smolvlm": ("SmolVLM", "ForConditionalGeneration"),
    "gemma3": ("Gemma3", "ForConditionalGeneration"),
}


def build(model: TinyTower) -> Any:
    """Transformers' network with the recipe's weights."""
    stem, suffix = CLASSES[model.name]
    config = getattr(transformers, f"{stem}Config")(**model.config, attn_implementation="eager")
    network = getattr(transformers, stem + suffix)(config).eval()
    weights = {name: torch.from_numpy(value) for name, value in hf_weights(model).items()}
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert set(missing) <= ({"lm_head.weight"} if model.averages else set()), missing
    assert not unexpected, unexpected
    return network


def golden(model: TinyTower) -> dict[str, Any]:
    """Rows of embeddings of each tile, and logits after some tokens of the prompt."""
    network, scaled = build(model), []
    count = sum(isinstance(part, int) for part in PARTS)
    for tile in range(count):
        values = pixels(model, tile).astype(np.float32).transpose(2, 0, 1)
        scaled.append((values * np.float32(1 / 255) - np.float32(0.5)) / np.float32(0.5))
    images = torch.from_numpy(np.stack(scaled))
    if model.name == "smolvlm":
        images = images[None]
    with torch.no_grad():
        features = network.model.get_image_features(images).pooler_output
        rows = torch.cat([each.reshape(-1, each.shape[-1]) for each in features]).numpy()
        rows = rows.reshape(count, -1, rows.shape[-1])
        ids: list[int] = []
        for part in PARTS:
            ids += [PLACEHOLDER] * rows.shape[1] if isinstance(part, int) else part
        tokens, options = torch.tensor([ids]), {}
        if model.averages:
            options["token_type_ids"] = (tokens == PLACEHOLDER).int()
        logits = network(input_ids=tokens, pixel_values=images, **options).logits[0].numpy()
    return {
        "rows": [[rounded(tile[row]) for row in GOLDEN_ROWS] for tile in rows],
        "logits": [rounded(logits[token]) for token in GOLDEN_TOKENS],
    }


def rounded(values: Iterable[float]) -> list[float]:
    """Seven significant digits: what float32 holds."""
    return [float(f"{value:.7g}") for value in values]


def main() -> None:
    lines = [f"{json.dumps(model.name)}: {json.dumps(golden(model))}" for model in TOWERS]
    versions = {module.__name__: module.__version__ for module in (torch, transformers)}
    lines.insert(0, f'"about": {json.dumps(versions)}')
    GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{GOLDENS}: {GOLDENS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
