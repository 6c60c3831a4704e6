"""Records what the processors of Transformers make of pictures.

Run manually from the root of the repository, with transformers and Pillow installed:

    python -m tests.data.models.makers.make_picture_goldens
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind
from tests.data.models.towers.pictures import COUNT, picture, sampled

# Not among the tools of this project, so type checking must not need them.
transformers = import_module("transformers")
idefics3 = import_module("transformers.models.idefics3.image_processing_pil_idefics3")
gemma4 = import_module("transformers.models.gemma4.image_processing_pil_gemma4")
gemma3 = import_module("transformers.models.gemma3.image_processing_pil_gemma3")
got_ocr2 = import_module("transformers.models.got_ocr2.image_processing_pil_got_ocr2")
pixtral = import_module("transformers.models.pixtral.image_processing_pil_pixtral")
qwen = import_module("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")

GOLDENS = Path(__file__).parents[1] / "goldens/picture_goldens.json"


def processor(config: ProcessorConfig) -> Any:
    """The class of the family, which scales pictures with Pillow."""
    common = {
        "image_mean": list(config.mean),
        "image_std": list(config.std),
        "resample": int(config.resampling),
    }
    if config.kind is ProcessorKind.GEMMA3:
        side = {"height": config.tile, "width": config.tile}
        return gemma3.Gemma3ImageProcessorPil(size=side, do_convert_rgb=True, **common)
    if config.kind is ProcessorKind.INTERNVL:  # `InternVLProcessor` always cuts
        return got_ocr2.GotOcr2ImageProcessorPil(
            size={"height": config.tile, "width": config.tile},
            crop_to_patches=config.splits,
            min_patches=config.least_tiles,
            max_patches=config.most_tiles,
            **common,
        )
    if config.kind is ProcessorKind.GEMMA4:
        return gemma4.Gemma4ImageProcessorPil(
            max_soft_tokens=config.most_rows,
            patch_size=config.patch,
            pooling_kernel_size=config.merge,
            resample=int(config.resampling),
        )
    if config.kind is ProcessorKind.PIXTRAL:  # `PixtralProcessor` gives it patches of a row
        return pixtral.PixtralImageProcessorPil(
            size={"longest_edge": config.longest_edge},
            patch_size=config.patch * config.merge,
            **common,
        )
    if config.kind is ProcessorKind.QWEN_VL:
        return qwen.Qwen2VLImageProcessorPil(
            size={"shortest_edge": config.least_pixels, "longest_edge": config.most_pixels},
            patch_size=config.patch,
            merge_size=config.merge,
            temporal_patch_size=1,
            **common,
        )
    return idefics3.Idefics3ImageProcessorPil(
        size={"longest_edge": config.longest_edge},
        max_image_size={"longest_edge": config.tile},
        do_image_splitting=config.splits,
        **common,
    )


def golden(number: int) -> list[int] | None:
    """What `made` says, or None of a picture that is refused."""
    try:
        return made(number)
    except ValueError as error:
        print(f"picture {number}: {error}")
        return None


def made(number: int) -> list[int]:
    """Rows and columns of tiles, number of tiles, and samples of pixels."""
    image, config = picture(number)
    found, rows, columns = processor(config), 0, 0
    if config.kind is ProcessorKind.GEMMA3:
        tiles = found.preprocess([image], return_tensors="np")["pixel_values"]
    elif config.kind is ProcessorKind.INTERNVL:
        tiles = found.preprocess([image], return_tensors="np")["pixel_values"]
        sizes = (image.height, image.width), (config.tile, config.tile)
        limits = config.least_tiles, config.most_tiles
        columns, rows = got_ocr2.get_optimal_tiled_canvas(*sizes, *limits)
        rows, columns = (0, 0) if rows * columns == 1 else (rows, columns)
    elif config.kind is ProcessorKind.GEMMA4:
        batch = found.preprocess([image], return_tensors="np")
        columns, rows = batch["image_position_ids"][0].max(axis=0) + 1
        cut = batch["pixel_values"][0][: rows * columns]
        cut = cut.reshape(rows, columns, config.patch, config.patch, 3).transpose(4, 0, 2, 1, 3)
        tiles = cut.reshape(1, 3, rows * config.patch, columns * config.patch) * 2 - 1
    elif config.kind is ProcessorKind.PIXTRAL:
        batch = found.preprocess([image], return_tensors="np")
        tiles, (height, width) = batch["pixel_values"], batch["image_sizes"][0]
        rows, columns = height // config.patch, width // config.patch
    elif config.kind is ProcessorKind.QWEN_VL:
        batch = found.preprocess([image], return_tensors="np")
        _, rows, columns = batch["image_grid_thw"][0]
        tiles = whole(batch["pixel_values"], int(rows), int(columns), config)[None]
    else:
        batch = found.preprocess([[image]], return_row_col_info=True, return_tensors="np")
        tiles, rows, columns = batch["pixel_values"][0], batch["rows"][0][0], batch["cols"][0][0]
    mean, std = (np.array(each)[:, None, None] for each in (config.mean, config.std))
    return [int(rows), int(columns), len(tiles), *sampled(number, (tiles * std + mean) * 255)]


def whole(patches: Any, rows: int, columns: int, config: ProcessorConfig) -> Any:
    """Patches as a picture, [3, height, width]."""
    side, merge = config.patch, config.merge
    cut = patches.reshape(rows // merge, columns // merge, merge, merge, 3, side, side)
    return cut.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * side, columns * side)


def main() -> None:
    lines = ",\n".join(json.dumps(golden(number)) for number in range(COUNT))
    about = json.dumps({"transformers": transformers.__version__})
    GOLDENS.write_text(f'{{"about": {about},\n"pictures": [\n{lines}\n]}}\n')
    print(f"{GOLDENS}: {GOLDENS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
