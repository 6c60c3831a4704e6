"""Images in the tokens of a prompt."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rocmforge.api.images.prompt_images import PromptImage, prompt_with_images
from rocmforge.engine.ipc.prompt import Prompt, TokenSpan
from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind, Resampling
from rocmforge.models.vision.towers import vision_config
from rocmforge.pixels.processors.processing import layout, process
from rocmforge.text.template.template import RenderedPrompt
from tests.support.files.pictures import picture
from tests.support.models.vision import AROUND, MARKER, PLACEHOLDER, vision_text

PIXTRAL = ProcessorConfig(
    kind=ProcessorKind.PIXTRAL,
    longest_edge=60,
    resampling=Resampling.BICUBIC,
    patch=4,
    merge=2,
    places=1,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)


INTERNVL = ProcessorConfig(
    kind=ProcessorKind.INTERNVL,
    tile=16,
    splits=True,
    least_tiles=1,
    most_tiles=4,
    resampling=Resampling.BICUBIC,
    patch=4,
    merge=2,
    has_class=True,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)


def prompt_of(
    text: str, *sizes: tuple[int, int], config: ProcessorConfig = PIXTRAL, **texts: str
) -> Prompt:
    """A prompt with pictures; by default for a model with a token behind each line of rows."""
    tokenizer, _ = vision_text()
    texts = texts or {"between": "<around>", "end": "</s>"}
    vision = replace(vision_config(config, PLACEHOLDER), marker=MARKER, **texts)
    images = [PromptImage.of(process(picture(*size), config), vision) for size in sizes]
    return prompt_with_images(tokenizer, RenderedPrompt(text, b"\1" * len(text)), vision, images)


def test_each_line_of_an_image_but_the_last_ends_with_a_token() -> None:
    """As `PixtralProcessor` writes them: of 24 x 16 pixels, two lines of three rows."""
    tokenizer, _ = vision_text()
    before, after = (tokenizer.encode(text, parse_special=True) for text in ("see ", " there"))
    end = tokenizer.encode("</s>", parse_special=True)
    found = prompt_of("see <image> there<image>", (24, 16), (9, 24))
    line, narrow = (PLACEHOLDER,) * 3, (PLACEHOLDER,) * 2
    assert found.token_ids == (
        *before,
        *(*line, AROUND, *line),
        *end,
        *after,
        *(*narrow, AROUND, *narrow, AROUND, *narrow),
        *end,
    )
    assert len(found) == len(found.token_ids)
    assert [span.num_rows for span in found.images] == [6, 6]
    assert [span.lines for span in found.images] == [2, 3]


def test_an_image_of_one_line_has_no_such_token() -> None:
    found = prompt_of("<image>", (100, 4))
    assert found.spans[0].ids == (PLACEHOLDER,) * 8
    assert isinstance(found.spans[1], TokenSpan)
    assert AROUND not in found.token_ids


@pytest.mark.parametrize("size", [(1, 61), (2000, 33)])
def test_a_picture_of_which_scaling_leaves_nothing_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidParameter, match="the other one has none"):
        layout(*size, PIXTRAL)


def test_a_side_is_cut_to_whole_pixels_before_it_is_filled_to_whole_squares() -> None:
    assert layout(90, 25, PIXTRAL).tile_rows == (8 * 2,)  # 60 x 16.67 pixels
    assert layout(25, 90, PIXTRAL).tile_rows == (8 * 2,)


def test_rows_of_all_tiles_follow_each_other_and_the_whole_is_the_last() -> None:
    """As `InternVLProcessor` writes them: a high picture is two tiles and the whole."""
    tokenizer, _ = vision_text()
    texts = {"begin": "<around>", "end": "</s>"}
    found = prompt_of("<image>\nsee", (20, 40), config=INTERNVL, **texts)
    end, after = (tokenizer.encode(text, parse_special=True) for text in ("</s>", "\nsee"))
    assert found.token_ids == (AROUND, *(PLACEHOLDER,) * 12, *end, *after)
    top, bottom, whole = found.images
    scaled = picture(20, 40).resize((16, 16), Resampling.BICUBIC)
    assert whole.patches == process(scaled, INTERNVL).tiles[0].patches
    assert top.patches != bottom.patches


def test_a_small_square_is_one_tile_and_so_is_any_picture_of_low_detail() -> None:
    assert layout(16, 16, INTERNVL).tile_rows == (4,)
    assert layout(40, 20, replace(INTERNVL, splits=False)).tile_rows == (4,)
    assert layout(40, 40, INTERNVL).tile_rows == (4,) * 5
