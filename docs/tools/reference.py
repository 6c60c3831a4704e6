"""The pages of docs/reference, which are made of the code.

`just reference` writes them; `tests/unit/test_documentation.py` fails if one is out of date.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from docs.tools import api_page, capacity_page, findings_page, metrics_page, settings_page

FOLDER: Final = Path(__file__).parents[1] / "reference"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings_page.text,
    "metrics.md": metrics_page.text,
    "findings.md": findings_page.text,
    "api.md": api_page.text,
    "capacity.md": capacity_page.text,
}
"""By file: what makes its text."""


def main() -> None:
    """Writes all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
