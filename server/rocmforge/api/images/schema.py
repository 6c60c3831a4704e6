"""Images as a chat has them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

IMAGE: Final = "image_url"
"""The type of a part that is an image, in chats."""

ImageDetail = Literal["auto", "low", "high"]


class ImageUrl(msgspec.Struct, kw_only=True):
    """The address of an image: data:, or where it is fetched."""

    url: str
    detail: ImageDetail | None = None


class PlacedImage(ImageUrl, kw_only=True):
    """An image and the path by which its request knows it."""

    path: str
