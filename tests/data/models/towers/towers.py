"""All tiny models that take images."""

from __future__ import annotations

from typing import Final

from tests.data.models.towers import tiny_towers
from tests.data.models.towers.tiny_gemma4_tower import GEMMA4, GEMMA4_E
from tests.data.models.towers.tiny_gemma4_unified import GEMMA4_UNIFIED
from tests.data.models.towers.tiny_internvl import INTERNVL, INTERNVL_6B
from tests.data.models.towers.tiny_picture_experts import QWEN3_VL_MOE
from tests.data.models.towers.tiny_pixtral import MISTRAL3, PIXTRAL
from tests.data.models.towers.tiny_windows import QWEN2_VL, QWEN25_VL

_MORE: Final = (
    *(MISTRAL3, PIXTRAL, INTERNVL, INTERNVL_6B, QWEN2_VL, QWEN25_VL, QWEN3_VL_MOE),
    *(GEMMA4, GEMMA4_E, GEMMA4_UNIFIED),
)
TOWERS: Final = (*tiny_towers.TOWERS, *_MORE)
IN_FILES: Final = (*tiny_towers.IN_FILES, *_MORE)
"""Those that are written as GGUF files, too: the tower of Qwen 3.5 is as that of Qwen3-VL."""
