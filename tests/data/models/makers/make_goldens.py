"""Records what Transformers computes for the tiny models: logits, and rope frequencies.

Run manually from the root of the repository, with torch and transformers installed, for all models
or those that are named:

    python -m tests.data.models.makers.make_goldens [NAME...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.data.models.text.model_files import hf_weights
from tests.data.models.text.tiny_experts import EXPERT_CLASSES
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import GOLDEN_ROWS, MODELS, PROMPT
from tests.data.models.text.tiny_recurrent import FAR_PROMPT, LENGTHS, LONG_PROMPT

# Not among the tools of this project, so type checking must not need them.
torch = import_module("torch")
transformers = import_module("transformers")

GOLDENS = Path(__file__).parents[1] / "goldens/goldens.json"


def build(model: TinyModel) -> Any:
    """Transformers' network with the recipe's weights."""
    if model.hf_class in EXPERT_CLASSES or model.shapes:
        return read_folder(model)
    built = network(model)
    if model.hf_class == "MuseGlimmer":
        return _muse(model, built)
    weights = {name: torch.from_numpy(value) for name, value in hf_weights(model).items()}
    missing, unexpected = built.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= ({"lm_head.weight"} if model.is_tied else set()), missing
    return built


def _muse(model: TinyModel, text: Any) -> Any:
    """A network of the text part and an output matrix: the class for both has a tower, too."""
    weights = {name: torch.from_numpy(value) for name, value in hf_weights(model).items()}
    output = weights.pop("lm_head.weight")
    text.load_state_dict({name.removeprefix("model."): w for name, w in weights.items()})
    scale, cap = (model.config[key] for key in ("output_multiplier", "final_logit_softcapping"))

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = text

        def forward(self, tokens: Any, logits_to_keep: int = 0) -> Any:
            states = self.model(tokens).last_hidden_state[:, -logits_to_keep:]
            logits = cap * torch.tanh(states @ output.T * scale / cap)
            return SimpleNamespace(logits=logits)

    return Network()


def network(model: TinyModel) -> Any:
    """Transformers' network with random weights of its own."""
    has_images = model.hf_class in ("Gemma3", "Gemma4", "Qwen3_5", "Qwen3_5Moe")
    if model.hf_class == "MuseGlimmer":
        config = transformers.models.muse_glimmer.MuseGlimmerTextConfig(
            **model.config, attn_implementation="eager"
        )
        return transformers.models.muse_glimmer.modeling_muse_glimmer.MuseGlimmerTextModel(
            config
        ).eval()
    config_name = f"{model.hf_class}{'Text' if has_images else ''}Config"
    config = getattr(transformers, config_name)(**model.config, attn_implementation="eager")
    return getattr(transformers, f"{model.hf_class}ForCausalLM")(config).eval()


def read_folder(model: TinyModel) -> Any:
    """Transformers' network, read from a folder: it keeps experts in other tensors than files."""
    with tempfile.TemporaryDirectory() as parent:
        folder = write_folder(model, Path(parent, model.name))
        options = {}
        if model.is_packed:
            options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
        found, report = getattr(transformers, f"{model.hf_class}ForCausalLM").from_pretrained(
            folder,
            attn_implementation="eager",
            dtype="float32",
            output_loading_info=True,
            **options,
        )
    assert not any(report.values()), report
    return found.eval()


def golden(model: TinyModel) -> dict[str, Any]:
    """Logits after some tokens of the prompt, and the rope frequencies used for it."""
    built = build(model)
    with torch.no_grad():
        logits = built(torch.tensor([PROMPT])).logits[0].numpy()
    rope = getattr(built.model, "rotary_emb", None) or getattr(built.model, "pos_emb", None)
    prefix = "full_attention_" if model.hf_class in ("Gemma3", "Gemma4", "Olmo3") else ""
    found: dict[str, Any] = {"logits": [rounded(logits[row]) for row in GOLDEN_ROWS]}
    if rope is not None:
        found["frequencies"] = rounded(getattr(rope, f"{prefix}inv_freq"))
        found["attention_factor"] = float(getattr(rope, f"{prefix}attention_scaling"))
    if model.shapes and model.architecture != "gemma4":
        found["ends"] = [rounded(last_logits(built, LONG_PROMPT[:end])) for end in LENGTHS]
        found["far"] = rounded(last_logits(built, FAR_PROMPT))
    if model.architecture == "muse-glimmer":
        found["ends"] = [rounded(last_logits(built, LONG_PROMPT[:end])) for end in LENGTHS]
    if rope is not None and prefix:
        found["local_frequencies"] = rounded(rope.sliding_attention_inv_freq)
    return found


def last_logits(built: Any, prompt: Sequence[int]) -> Any:
    """Logits after a prompt."""
    with torch.no_grad():
        return built(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1].numpy()


def rounded(values: Iterable[float]) -> list[float]:
    """Seven significant digits: what float32 holds."""
    return [float(f"{value:.7g}") for value in values]


def main() -> None:
    wanted = sys.argv[1:] or [model.name for model in MODELS]
    goldens = json.loads(GOLDENS.read_text())
    goldens |= {model.name: golden(model) for model in MODELS if model.name in wanted}
    del goldens["about"]
    spread = {name: float(np.std(found["logits"])) for name, found in goldens.items()}
    versions = {module.__name__: module.__version__ for module in (torch, transformers, np)}
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in goldens.items()]
    lines.insert(0, f'"about": {json.dumps(versions)}')
    GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{GOLDENS}: {GOLDENS.stat().st_size} bytes; spread of logits: {spread}")


if __name__ == "__main__":
    main()
