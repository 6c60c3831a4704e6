"""Records the `config.json` that Transformers writes for the tiny models.

Run manually from the root of the repository, with torch and transformers installed, for all models
or those that are named:

    python -m tests.data.models.makers.make_folder_configs [NAME...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.data.models.makers.make_goldens import network
from tests.data.models.text.tiny_encoders import ENCODERS, TinyEncoder
from tests.data.models.text.tiny_models import MODELS

# Not among the tools of this project, so type checking must not need it.
transformers = import_module("transformers")

CONFIGS = Path(__file__).parents[1] / "goldens/folder_configs.json"


def saved_config(network: Any) -> dict[str, Any]:
    """The `config.json` of a network."""
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        found: dict[str, Any] = json.loads(Path(folder, "config.json").read_text())
        return found


def encoder(model: TinyEncoder) -> Any:
    """Transformers' network of the recipe, with any weights."""
    eps = {model.eps_key: 1e-12}
    config = getattr(transformers, f"{model.hf_class}Config")(**model.config, **eps)
    return getattr(transformers, model.network)(config)


def main() -> None:
    wanted = sys.argv[1:] or [model.name for model in (*MODELS, *ENCODERS)]
    configs = json.loads(CONFIGS.read_text())
    configs |= {
        model.name: saved_config(network(model)) for model in MODELS if model.name in wanted
    }
    configs |= {
        model.name: saved_config(encoder(model))
        for model in ENCODERS
        if not model.is_jina and model.name in wanted
    }
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in configs.items()]
    CONFIGS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{CONFIGS}: {CONFIGS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
