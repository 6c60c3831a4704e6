"""Records what Transformers computes for tiny models that take images, from pixels to logits.

Run manually from the root of the repository, with torch and transformers installed:

    python -m tests.data.models.makers.make_tower_goldens
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.models.towers.tiny_tower import (
    GOLDEN_ROWS,
    GOLDEN_TOKENS,
    PARTS,
    PLACEHOLDER,
    TinyTower,
)
from tests.data.models.towers.tower_files import hf_weights, pixels
from tests.data.models.towers.towers import TOWERS

# Not among the tools of this project, so type checking must not need them.
torch = import_module("torch")
transformers = import_module("transformers")

GOLDENS = Path(__file__).parents[1] / "goldens/tower_goldens.json"
CLASSES = {
    "smolvlm": ("SmolVLM", "ForConditionalGeneration"),
    "gemma3": ("Gemma3", "ForConditionalGeneration"),
    "qwen3_vl": ("Qwen3VL", "ForConditionalGeneration"),
    "qwen3_vl_moe": ("Qwen3VLMoe", "ForConditionalGeneration"),
    "qwen3_5": ("Qwen3_5", "ForConditionalGeneration"),
    "internvl": ("InternVL", "ForConditionalGeneration"),
    "internvl_6b": ("InternVL", "ForConditionalGeneration"),
    "gemma4": ("Gemma4", "ForConditionalGeneration"),
    "gemma4_e": ("Gemma4", "ForConditionalGeneration"),
    "gemma4_unified": ("Gemma4Unified", "ForConditionalGeneration"),
    "mistral3": ("Mistral3", "ForConditionalGeneration"),
    "pixtral": ("Llava", "ForConditionalGeneration"),
    "qwen2_vl": ("Qwen2VL", "ForConditionalGeneration"),
    "qwen2_5_vl": ("Qwen2_5_VL", "ForConditionalGeneration"),
}
GENERATED = 8


def build(model: TinyTower) -> Any:
    """Transformers' network with the recipe's weights."""
    stem, suffix = CLASSES[model.name]
    config = getattr(transformers, f"{stem}Config")(**model.config, attn_implementation="eager")
    network = getattr(transformers, stem + suffix)(config).eval()
    weights = {name: torch.from_numpy(value) for name, value in hf_weights(model).items()}
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert set(missing) <= ({"lm_head.weight"} if model.ties else set()), missing
    assert not unexpected, unexpected
    return network


def golden(model: TinyTower) -> dict[str, Any]:
    """Rows of embeddings of each tile, logits after some tokens of the prompt, and an answer."""
    network = build(model)
    count = sum(isinstance(part, int) for part in PARTS)
    tiles = [pixels(model, tile).astype(np.float32).transpose(2, 0, 1) for tile in range(count)]
    tiles = [(tile * np.float32(1 / 255) - np.float32(0.5)) / np.float32(0.5) for tile in tiles]
    if model.is_qwen:
        given = qwen_inputs(model, tiles)
    elif model.name.startswith("gemma4"):
        given = gemma4_inputs(model, tiles)
    elif model.keeps_shape:
        given = padded(tiles)
    else:
        images = torch.from_numpy(np.stack(tiles))
        given = {"pixel_values": images[None] if model.name == "smolvlm" else images}
    with torch.no_grad():
        found = network.model.get_image_features(**given)
        rows = [each.reshape(-1, each.shape[-1]).numpy() for each in found.pooler_output]
        if not model.keeps_shape:
            rows = np.split(np.concatenate(rows), count)
        for part in getattr(found, "deepstack_features", None) or ():
            rows = [np.concatenate(both, axis=1) for both in zip(rows, part, strict=True)]
        ids: list[int] = []
        for part in PARTS:
            ids += shown(model, part, len(rows[part])) if isinstance(part, int) else part
        count, logits = len(ids), np.zeros(0)
        for _ in range(GENERATED):
            tokens = torch.tensor([ids])
            if model.both_ways or model.is_qwen:
                name = "token_type_ids" if model.averages else "mm_token_type_ids"
                given[name] = (tokens == PLACEHOLDER).int()
            if model.name == "gemma4_unified":
                given["attention_mask"] = unified_masks(network, tokens)
            logits = network(input_ids=tokens, **given).logits[0].numpy()
            ids.append(int(logits[-1].argmax()))
    return {
        "rows": [[rounded(tile[row]) for row in GOLDEN_ROWS] for tile in rows],
        "logits": [rounded(logits[count + token]) for token in GOLDEN_TOKENS],
        "answer": ids[count:],
        "last_logits": rounded(logits[-1]),
    }


def unified_masks(network: Any, tokens: Any) -> Any:
    """The masks that `generate` makes: `forward` alone lets rows see ahead in all layers."""
    return network.create_masks_for_generate(
        network.config,
        network.get_input_embeddings()(tokens),
        None,
        None,
        torch.arange(tokens.shape[1])[None],
        (tokens == PLACEHOLDER).int(),
    )


def shown(model: TinyTower, tile: int, num_rows: int) -> list[int]:
    """The tokens that stand for a tile."""
    if not model.line_ends:
        return [PLACEHOLDER] * num_rows
    lines = model.size(tile)[0] // (model.config["vision_config"]["patch_size"] * model.merge)
    line = [PLACEHOLDER] * (num_rows // lines)
    return [*line, *([*model.line_ends, *line] * (lines - 1))]


def padded(tiles: list[Any]) -> dict[str, Any]:
    """Tiles with zeros behind their last rows and columns, and their sizes."""
    height, width = (max(tile.shape[axis] for tile in tiles) for axis in (1, 2))
    found = np.zeros((len(tiles), 3, height, width), np.float32)
    for place, tile in zip(found, tiles, strict=True):
        place[:, : tile.shape[1], : tile.shape[2]] = tile
    sizes = [tile.shape[1:] for tile in tiles]
    return {"pixel_values": torch.from_numpy(found), "image_sizes": torch.tensor(sizes)}


def gemma4_inputs(model: TinyTower, tiles: list[Any]) -> dict[str, Any]:
    """Patches from 0 to 1 with their columns and rows, and nothing up to the most of them."""
    vision = model.config["vision_config"]
    side = vision.get("model_patch_size", vision["patch_size"])
    most = model.processor["max_soft_tokens"] * model.merge**2
    patches, places = [], []
    for tile in tiles:
        rows, columns = tile.shape[1] // side, tile.shape[2] // side
        cut = tile.reshape(3, rows, side, columns, side).transpose(1, 3, 2, 4, 0)
        cut = cut.reshape(rows * columns, -1) / 2 + np.float32(0.5)
        own = np.stack(np.divmod(np.arange(rows * columns), columns)[::-1], axis=1)
        behind = ((0, most - rows * columns), (0, 0))
        patches.append(np.pad(cut, behind))
        places.append(np.pad(own, behind, constant_values=-1))
    return {
        "pixel_values": torch.from_numpy(np.stack(patches)),
        "image_position_ids": torch.from_numpy(np.stack(places)),
    }


def qwen_inputs(model: TinyTower, tiles: list[Any]) -> dict[str, Any]:
    """The patches of all tiles one after the other, each twice, and their grids."""
    vision = model.config["vision_config"]
    side, merge = vision["patch_size"], vision["spatial_merge_size"]
    patches, grids = [], []
    for tile in tiles:
        rows, columns = tile.shape[1] // side, tile.shape[2] // side
        cut = tile.reshape(3, rows // merge, merge, side, columns // merge, merge, side)
        cut = cut.transpose(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, 3, 1, side, side)
        twice = np.repeat(cut, vision["temporal_patch_size"], axis=2)
        patches.append(twice.reshape(rows * columns, -1))
        grids.append([1, rows, columns])
    return {
        "pixel_values": torch.from_numpy(np.concatenate(patches)),
        "image_grid_thw": torch.tensor(grids),
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
