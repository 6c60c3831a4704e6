"""The documentation becomes a site: every page is in it, every link leads somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.pages import PAGES, ROOT

pytest.importorskip("material", reason="the group `docs` is not installed")
pytestmark = pytest.mark.slow

FOREIGN = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//")


def build(site: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "--site-dir", site],
        env={"PATH": "", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_it(site: Path) -> None:
    built = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(built) == len(PAGES)


def test_the_navigation_has_pages_that_are_called_readme_too(site: Path) -> None:
    home = (site / "index.html").read_text()
    assert set(re.findall(r"<span class=\"md-ellipsis\">\s*(.*?)\s*<", home)) >= {
        "Kernels",
        "Running ROCmForge in containers",
        "Tests",
    }


def test_links_within_a_page_and_to_other_pages_stay_and_those_to_code_do_not(site: Path) -> None:
    api = (site / "reference" / "api" / "index.html").read_text()
    assert '<td><a href="#streamoptions">' in api
    assert 'href="../../clients/"' in api
    contributing = (site / "contributing" / "index.html").read_text()
    assert "tests/platform/host/README.md" in contributing
    assert 'host/README.md"' not in contributing


def test_browsers_ask_nobody_else(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    foreign = {found for page in pages for found in FOREIGN.findall(page.read_text())}
    assert foreign == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"@import|url\((?!\"?data:|\"?#)[^)]*//[^)]*\)", styles) == []


def test_links_that_lead_nowhere_end_the_build(tmp_path: Path) -> None:
    links = ("gone.md", "models.md#gone", "../server/gone.py")
    for name in ("docs", "docker", "kernels", "release", "tests"):
        for path in (ROOT / name).rglob("*.md"):
            copied = tmp_path / path.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)
    for path in ROOT.glob("*.md"):
        shutil.copy(path, tmp_path)
    shutil.copytree(ROOT / "docs" / "tools", tmp_path / "docs" / "tools")
    config = shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "server").symlink_to(ROOT / "server")
    page = tmp_path / "docs" / "names.md"
    page.write_text("\n".join([page.read_text(), *(f"[planted]({link})" for link in links)]))
    done = build(tmp_path / "site", Path(config))
    assert done.returncode == 1
    assert [link for link in links if f"'{link}'" not in done.stderr] == []
