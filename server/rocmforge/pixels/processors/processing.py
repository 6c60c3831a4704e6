"""The processor of any family, chosen by its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind
from rocmforge.models.vision.image import ImageLayout, ProcessedImage
from rocmforge.pixels.processors import gemma3, gemma4, idefics3, internvl, pixtral, qwen_vl

if TYPE_CHECKING:
    from PIL.Image import Image


class _Processor(Protocol):
    def layout(self, width: int, height: int, config: ProcessorConfig) -> ImageLayout: ...

    def process(self, image: Image, config: ProcessorConfig) -> ProcessedImage: ...


_PROCESSORS: Final[Mapping[ProcessorKind, _Processor]] = MappingProxyType(
    {
        ProcessorKind.IDEFICS3: idefics3,
        ProcessorKind.INTERNVL: internvl,
        ProcessorKind.GEMMA3: gemma3,
        ProcessorKind.GEMMA4: gemma4,
        ProcessorKind.PIXTRAL: pixtral,
        ProcessorKind.QWEN_VL: qwen_vl,
    }
)


def layout(width: int, height: int, config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture of a size becomes; needs no Pillow.

    Args:
        width: In pixels, 1 or more, as the picture is shown.
        height: In the same way.
        config: Of the model.
    """
    return _PROCESSORS[config.kind].layout(width, height, config)


def process(image: Image, config: ProcessorConfig) -> ProcessedImage:
    """Returns a picture as the model's tower takes it, with the pixels of its own processor.

    Args:
        image: Of any mode, turned as it is shown. What shows through it is white.
        config: Of the model.
    """
    return _PROCESSORS[config.kind].process(image, config)
