"""Checks of a prompt before it is sent to the engine process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.engine.ipc.params import GenerateRequest
from rocmforge.engine.ipc.prompt import EmbeddingSpan, ImageSpan
from rocmforge.engine.ipc.wire import MAX_FRAME_BYTES
from rocmforge.errors import ContextLengthExceeded, InvalidParameter, UnsupportedFeature

_MAX_ROWS_BYTES = MAX_FRAME_BYTES // 2
"""Of a prompt's rows of embeddings, which travel in one message with everything else."""


def check_prompt(request: GenerateRequest, runner: RunnerInfo) -> None:
    """Refuses what would make the engine compute nonsense, or with indices out of range.

    Raises:
        InvalidParameter: the prompt or a span of it is empty, a token id is not in the vocabulary,
            or rows of embeddings have another width than the model's, or are too many bytes.
        UnsupportedFeature: the model takes no rows of embeddings.
        ContextLengthExceeded: with them, the prompt is too long.
    """
    prompt = request.prompt
    if not len(prompt):
        raise InvalidParameter("The prompt is empty.", param="prompt")
    if not all(map(len, prompt.spans)):
        raise InvalidParameter("A span of the prompt is empty.", param="prompt")
    for image in prompt.images:
        _check_image(image, runner)
    ids = prompt.id_array
    for param, least, most in (
        ("prompt", ids.min(), ids.max()),
        *_bounds("stop_token_ids", request.sampling.stop_token_ids),
        *_bounds("logit_bias", [token for token, _ in request.sampling.logit_bias]),
    ):
        if not (least >= 0 and most < runner.vocab_size):
            raise InvalidParameter(
                f"{param} holds a token id outside 0..{runner.vocab_size - 1}.", param=param
            )
    spans = [span for _, span in prompt.embeddings]
    for span in spans:
        _check_rows(span, runner)
    size = sum(len(span.rows) for span in spans) + sum(len(each.patches) for each in prompt.images)
    if size > _MAX_ROWS_BYTES:
        raise InvalidParameter(
            f"Embeddings and images of the prompt are {size:,} bytes, but no more than "
            f"{_MAX_ROWS_BYTES:,} can be sent.",
            param="prompt",
        )
    if (spans or prompt.images) and len(prompt) + request.sampling.max_tokens > runner.max_context:
        raise ContextLengthExceeded(
            limit=runner.max_context,
            prompt_tokens=len(prompt),
            max_tokens=request.sampling.max_tokens,
            param="prompt",
        )


def _bounds(param: str, ids: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Yields the least and the largest of some ids, if there are any."""
    if ids:
        yield param, min(ids), max(ids)


def _check_image(span: ImageSpan, runner: RunnerInfo) -> None:
    processor = runner.images
    if processor is None:
        raise UnsupportedFeature("The model takes no images.", param="prompt")
    if not processor.takes(span.grid) and not processor.tile:
        raise InvalidParameter(
            f"{span} has {span.grid} patches, but an image of this model has whole squares of "
            f"{processor.merge} x {processor.merge}, and no more than {processor.most_patches:,}.",
            param="prompt",
        )
    grid = span.grid if processor.takes(span.grid) else processor.grid
    expected = (
        grid,
        processor.rows_of(grid),
        grid[0] * grid[1] * processor.patch_features,
    )
    lines = grid[0] // processor.merge if span.breaks else 1
    if span.lines != lines:
        raise InvalidParameter(f"{span} has {span.lines} lines, not {lines}.", param="prompt")
    if (span.grid, span.num_rows, len(span.patches)) != expected or not span.identity:
        raise InvalidParameter(
            f"{span} has {len(span.patches)} bytes of {span.grid} patches, but a tile of this "
            f"model has {expected[2]} of {expected[0]}, for {expected[1]} rows.",
            param="prompt",
        )


def _check_rows(span: EmbeddingSpan, runner: RunnerInfo) -> None:
    if not runner.embedding_size:
        raise UnsupportedFeature(
            f"The backend {runner.backend!r} takes no embeddings in the prompt of this model.",
            param="prompt",
        )
    if not span.identity:
        raise InvalidParameter("Embeddings in a prompt need an identity.", param="prompt")
    if len(span.rows) != 4 * span.num_rows * runner.embedding_size:
        raise InvalidParameter(
            f"{span.num_rows} rows of embeddings are {len(span.rows)} bytes, but this model takes "
            f"rows of {runner.embedding_size} float32 numbers.",
            param="prompt",
        )
