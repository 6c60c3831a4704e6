"""Records the logits that Transformers computes for the tiny models.

Run by hand from the root of the repository, with torch and transformers installed:

    python -m tests.data.models.make_goldens
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from tests.data.models.tiny_models import (
    GOLDEN_ROWS,
    MODELS,
    PROMPT,
    TinyModel,
    hf_weights,
)

GOLDENS = Path(__file__).with_name("goldens.json")


def golden_logits(model: TinyModel) -> list[list[float]]:
    """Logits after some tokens of the prompt, to seven significant digits."""
    config_name = "Gemma3TextConfig" if model.hf_class == "Gemma3" else f"{model.hf_class}Config"
    config = getattr(transformers, config_name)(**model.config, attn_implementation="eager")
    network = getattr(transformers, f"{model.hf_class}ForCausalLM")(config).eval()
    weights = {name: torch.from_numpy(value) for name, value in hf_weights(model).items()}
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= ({"lm_head.weight"} if model.is_tied else set()), missing
    with torch.no_grad():
        logits = network(torch.tensor([PROMPT])).logits[0].numpy()
    return [[float(f"{value:.7g}") for value in logits[row]] for row in GOLDEN_ROWS]


def main() -> None:
    goldens = {model.name: golden_logits(model) for model in MODELS}
    spread = {name: float(np.std(rows)) for name, rows in goldens.items()}
    lines = [f" {json.dumps(name)}: {json.dumps(rows)}" for name, rows in goldens.items()]
    about = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
    lines.insert(0, f' "about": {json.dumps(about)}')
    GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{GOLDENS}: {GOLDENS.stat().st_size} bytes; spread of logits: {spread}")


if __name__ == "__main__":
    main()
