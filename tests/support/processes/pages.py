"""The pages that people read: the documentation, and the READMEs beside the code."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("docker", "kernels", "release", "tests")),
)
