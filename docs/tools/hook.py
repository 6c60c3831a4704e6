"""Makes one site of the pages in docs/ and of those that stand beside the code: MkDocs' hooks.

Each page keeps its path within the repository as its name, so that a link which works on a forge
works in the site. A link to a file that is no page, such as a module, becomes its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BESIDE_THE_CODE = {
    "README.md": "index.html",
    "ARCHITECTURE.md": "architecture/index.html",
    "CONTRIBUTING.md": "contributing/index.html",
    "CHANGELOG.md": "changelog/index.html",
    "docker/README.md": "docker/index.html",
    "kernels/README.md": "kernels/index.html",
    "release/README.md": "release/index.html",
    "tests/README.md": "tests/index.html",
}
"""Pages outside of docs/, and where each lies in the site."""

_CELL_CODE = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Names the pages as the repository does, and adds those from outside of docs/."""
    found = [_renamed(file, config) for file in files]
    for name, address in BESIDE_THE_CODE.items():
        found.append(_file(name, address, config))
    return Files(found)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Takes away links to files of the repository that are no pages; broken ones stay."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        name = link[2].partition("#")[0]
        path = posixpath.normpath(posixpath.join(folder, name))
        if not name or ":" in name or files.get_file_from_path(path) or not (ROOT / path).exists():
            return link[0]
        return link[1]

    return _LINK.sub(replaced, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Shows bars in the code of tables as forges do: without the backslash that they need there."""
    return _CELL_CODE.sub(lambda found: found[0].replace("\\|", "|"), html)


def _renamed(file: File, config: MkDocsConfig) -> File:
    if file.src_dir != config.docs_dir:  # the theme's
        return file
    renamed = _file(f"docs/{file.src_uri}", file.dest_uri, config)
    renamed.inclusion = file.inclusion
    return renamed


def _file(name: str, address: str, config: MkDocsConfig) -> File:
    return File(name, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=address)
