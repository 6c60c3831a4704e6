"""Reads the images of requests: from their addresses to what a model's tower takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from rocmforge.api.images.addresses import is_data, read_data
from rocmforge.api.images.fetching import Fetcher
from rocmforge.api.images.prompt_images import PromptImage
from rocmforge.api.images.schema import PlacedImage
from rocmforge.api.text_workers import TextWorkers
from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.config import VisionConfig
from rocmforge.pixels.readers import ImageReaders

MAX_IMAGES: Final = 64
"""Of one request."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of the files of all images of one request."""
_FETCHES: Final = 4


class Pictures:
    """Reads images, several at once. Used on one event loop only.

    Args:
        fetcher: of those that are elsewhere.
        readers: of files.
    """

    def __init__(self, fetcher: Fetcher, readers: ImageReaders | None = None) -> None:
        self._fetcher = fetcher
        self._readers = readers or ImageReaders()
        # As many processes read as there are threads; no key has all of them.
        self._workers = TextWorkers(threads=4, threads_of_a_key=2)

    async def read(
        self, images: Sequence[PlacedImage], vision: VisionConfig, owner: int
    ) -> tuple[PromptImage, ...]:
        """Reads the images of one request.

        Args:
            images: as the request has them.
            vision: what its model does with them.
            owner: `Share.key` of whoever asks.

        Raises:
            InvalidParameter: one of them cannot be had or read; names it and says why.
        """
        if len(images) > MAX_IMAGES:
            raise InvalidParameter(
                f"The request has {len(images)} images, but it may have {MAX_IMAGES}.",
                param=images[MAX_IMAGES].path,
            )
        share = _Share(MAX_BYTES)
        tasks = [asyncio.create_task(self._read(i, vision, owner, share)) for i in images]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        """Ends the processes that read."""
        self._readers.close()

    async def _read(
        self, image: PlacedImage, vision: VisionConfig, owner: int, share: _Share
    ) -> PromptImage:
        def read() -> PromptImage:
            data = read_data(image.url, MAX_BYTES) if fetched is None else fetched
            share.take(len(data))
            # Only of a processor that cuts images into tiles does it make a difference.
            splits = vision.processor.splits and image.detail != "low"
            config = replace(vision.processor, splits=splits)
            return PromptImage.of(self._readers.read(data, config, owner), vision)

        try:
            fetched = None
            if not is_data(image.url):
                async with share.fetches:
                    fetched = await self._fetcher.fetch(image.url)
            return await self._workers.run(owner, read)
        except InvalidParameter as error:
            raise InvalidParameter(
                f"The image '{image.path}' {error.message}.", param=image.path
            ) from error


class _Share:
    """The rest of what one request may take."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes
        self.fetches = asyncio.Semaphore(_FETCHES)  # at once

    def take(self, count: int) -> None:
        """Takes bytes of files."""
        self._left -= count
        if self._left < 0:
            raise InvalidParameter(
                f"is too much: the images of a request may have {MAX_BYTES:,} bytes together"
            )
