"""The choice among variants of decode steps, and the file that keeps it for the next load."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.step.shape import StepShape
from rocmforge_hip.ops.step.variants import VARIANTS, StepVariant
from rocmforge_hip.whole_file import write_whole

logger = logging.getLogger(__name__)


class VariantChoice(NamedTuple):
    """The variant that is best for steps of a size."""

    sequences: int
    blocks: int  # of the longest sequence
    name: str  # in `VARIANTS`


@dataclass(frozen=True, slots=True)
class StepVariants:
    """Which variant steps of decodes take: that of the nearest size of which it is known."""

    choices: tuple[VariantChoice, ...]

    @classmethod
    def always(cls, name: str) -> StepVariants:
        """Returns the choice of one variant for steps of all sizes."""
        return cls((VariantChoice(1, 1, name),))

    def __str__(self) -> str:
        first, *others = self.choices
        if not others:
            return first.name
        return "; ".join(
            f"{name} for {sequences} of {blocks * BLOCK_TOKENS} tokens"
            for sequences, blocks, name in self.choices
        )

    def of(self, shape: StepShape) -> StepVariant:
        """Returns the variant of a step; how many sequences it has counts first."""

        def distance(choice: VariantChoice) -> tuple[float, float]:
            sequences, blocks, _ = choice
            return abs(log2(sequences / shape.sequences)), abs(log2(blocks / shape.blocks))

        return VARIANTS[min(self.choices, key=distance).name]


@dataclass(frozen=True, slots=True)
class ChoiceFile:
    """The file that keeps what was measured of one model on one kind of device.

    Args:
        folder: Of such files; it need not exist.
        facts: All that the choice depends on.
    """

    folder: Path
    facts: tuple[Any, ...]

    @property
    def path(self) -> Path:
        """The file, whose name is a hash of the facts and of what there is to choose from."""
        whole = repr((self.facts, sorted(VARIANTS.items())))
        return self.folder / f"{hashlib.sha256(whole.encode()).hexdigest()[:32]}.json"

    def read(self) -> StepVariants | None:
        """Returns what is kept, or None; a file that cannot be used is left out with a warning."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s is ignored: %s", self.path, error)
            return None
        try:
            choices = tuple(VariantChoice(*choice) for choice in json.loads(text))
            if not choices or not all(map(_is_sound, choices)):
                raise ValueError("it has no choices of this version")
        except (ValueError, TypeError) as error:
            logger.warning("%s is ignored, and written anew: %s", self.path, error)
            return None
        return StepVariants(choices)

    def write(self, variants: StepVariants) -> None:
        """Keeps a choice; if the file cannot be written, the next load measures again."""
        try:
            write_whole(self.path, json.dumps(variants.choices).encode())
        except OSError as error:
            logger.warning("What was measured of decode steps is not kept: %s", error)


def _is_sound(choice: VariantChoice) -> bool:
    sizes = choice.sequences, choice.blocks
    return choice.name in VARIANTS and all(type(size) is int and size > 0 for size in sizes)
