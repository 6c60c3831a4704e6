"""Measures how long a tower takes for a tile of an image, with random weights.

    python -m benchmarks.tower smolvlm-500m

Prints the device's time of a step, and tiles a second with one step after the other.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rocmforge.backend import registry
from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.ipc.prompt import image_span
from rocmforge.engine.loading import tower_options
from rocmforge.engine.waiting.images import image_step
from rocmforge.models.vision.image import ImageTile
from rocmforge.opening import open_checkpoint
from tests.data.models.towers.tiny_tower import TinyTower
from tests.data.models.towers.tiny_towers import SMOLVLM
from tests.support.files.safetensors_writer import write_safetensors

OPTIONS = LoadOptions(
    device=None,
    max_context=4096,
    max_sequences=1,
    max_batched_tokens=4096,
    kv_blocks=None,
    kv_dtype="auto",
    memory_utilization=0.9,
)


@dataclass(frozen=True)
class Shape:
    """The tower of a real model; the model beside it is tiny."""

    vision: dict[str, Any]
    merge: int
    hidden_size: int  # of the model beside it


SHAPES = {
    "smolvlm-500m": Shape(
        {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 512,
            "patch_size": 16,
        },
        4,
        960,
    ),
}


def write(shape: Shape, folder: Path) -> Path:
    """Writes a folder; all layers of the tower have weights of their own."""
    text = SMOLVLM.config["text_config"] | {"hidden_size": shape.hidden_size}
    vision = SMOLVLM.config["vision_config"] | shape.vision
    config = SMOLVLM.config | {
        "scale_factor": shape.merge,
        "text_config": text,
        "vision_config": vision,
    }
    side = {"longest_edge": vision["image_size"]}
    model = TinyTower(
        name="random",
        config=config,
        processor=SMOLVLM.processor | {"max_image_size": side},
        seed=0,
    )
    rng = np.random.default_rng(0)
    weights = {}
    for name, size in model.shapes.items():
        noise = rng.standard_normal(size, np.float32) / np.sqrt(np.prod(size[1:], initial=1))
        weights[name] = noise.astype(np.float16)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(model.processor))
    write_safetensors(folder / "model.safetensors", weights)
    return folder


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--backend", default="hip")
    parser.add_argument("--tiles", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(write(SHAPES[options.shape], Path(folder)), options.backend, options.tiles)


def measure(folder: Path, backend: str, tiles: int) -> None:
    """Runs tiles one after the other, and prints what they took."""
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tower is not None
        assert checkpoint.vision is not None
        processor, config = checkpoint.vision.processor, checkpoint.tower.config
        runner = registry.create(backend).load(
            checkpoint.tower, tower_options(OPTIONS, config), lambda stage, share: None
        )
        rows, columns = processor.grid
        rng, spent = np.random.default_rng(1), []
        with closing(runner):
            size = rows * columns * processor.patch_features
            patches = rng.integers(0, 256, size, np.uint8).tobytes()
            tile = ImageTile(patches=patches, grid=(rows, columns), num_rows=processor.tile_rows)
            step = image_step(0, image_span(tile, 0), processor)
            started = time.perf_counter()
            for number in range(tiles):
                runner.submit(step)
                spent.append(runner.collect().device_ns / 1e6)
                if number == 4:
                    started = time.perf_counter()
            wall = (time.perf_counter() - started) / (tiles - 5)
    print(
        f"{rows * columns} patches, {processor.tile_rows} rows: {median(spent):.3f} ms on the "
        f"device, {1 / wall:.1f} tiles a second"
    )


if __name__ == "__main__":
    main()
