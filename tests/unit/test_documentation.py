"""What the documents name exists: files, tests, flags, variables, endpoints, commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest

from docs.tools import reference
from rocmforge import setting_sources, settings
from rocmforge.api.app import HANDLERS
from rocmforge.checkpoint.formats import FORMATS
from rocmforge.cli import main
from rocmforge.commands.chat.commands import COMMANDS
from rocmforge.fleet.entry import ModelState
from rocmforge.huggingface.config.decoder_types import DECODERS
from rocmforge.huggingface.config.encoders import ENCODERS
from rocmforge_hip.device.heads import CACHED_HEADS
from tests.support.processes.pages import PAGES

ROOT = Path(__file__).parents[2]
# Where the name of a file may start, besides the root and the folder of the page.
HOMES = (
    *("server/rocmforge", "backends/hip/rocmforge_hip"),
    *("kernels", "kernels/include", "kernels/include/rf"),
)
OTHERS_FILES = {
    *("convert_lora_to_gguf.py", "test/mockgpu/amd/emu.py", "opencode.json"),
    # Of models in Hugging Face's layout.
    *("config.json", "generation_config.json", "modules.json", "1_Pooling/config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("config_sentence_transformers.json", "added_tokens.json"),
    *("model.safetensors.index.json", "adapter_config.json", "chat_template.json"),
}
# Paths that are no endpoints.
FILE_SYSTEM = ("/dev", "/models/", "/opt", "/sys", "/tmp", "/usr", "/var")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def spans(page: Path) -> list[str]:
    """What stands in backticks within the text."""
    return re.findall(r"`([^`\n]+)`", _FENCE.sub("", read(page)))


def commands(page: Path) -> Iterator[str]:
    """The lines of indented and shell blocks, and spans; continued lines are joined."""
    text = read(page).replace("\\\n", " ")
    for language, block in _FENCE.findall(text):
        if language in ("", "sh", "bash"):
            yield from block.splitlines()
    yield from re.findall(r"^ {4}(\S.*)$", _FENCE.sub("", text), re.MULTILINE)
    yield from spans(page)


def in_pages(pattern: str) -> set[tuple[str, str]]:
    """Every match, with the name of its page."""
    return {(page.name, match) for page in PAGES for match in re.findall(pattern, read(page))}


@cache
def names_of_files() -> frozenset[str]:
    folders = ("server", "backends", "kernels", "tests", "benchmarks", "docker", "docs")
    return frozenset(path.name for folder in folders for path in (ROOT / folder).rglob("*.*"))


def is_file(name: str, page: Path) -> bool:
    homes = (ROOT, page.parent, *(ROOT / home for home in HOMES))
    if any((home / name).exists() for home in homes):
        return True
    return "/" not in name and name in names_of_files()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_files_that_exist(page: Path) -> None:
    links = {
        link.partition("#")[0]
        for link in re.findall(r"\]\(([^)\s]+)\)", read(page))
        if "://" not in link
    }
    named = {
        word.partition("::")[0]
        for text in (*spans(page), *commands(page))
        for word in text.split()
        if re.fullmatch(r"[\w.][\w./-]*\.(py|md|hip|h|cpp|c|ya?ml|json)(::\w+)?", word)
    }
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [name for name in named - OTHERS_FILES if not is_file(name, page)] == []


def test_every_named_test_exists() -> None:
    named = in_pages(r"`(tests/[\w/]+\.py::\w+)`")
    assert len(named) > 60
    missing = []
    for page, name in named:
        path, _, function = name.partition("::")
        if not re.search(rf"^ *(?:async )?def {function}\(", read(ROOT / path), re.MULTILINE):
            missing.append((page, name))
    assert missing == []


@cache
def help_of(command: str) -> str:
    """What `rocmforge COMMAND --help` prints; nothing for a command that is not there."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(StringIO()), pytest.raises(SystemExit):
        main([command, "--help"])
    return printed.getvalue()


def test_commands_of_rocmforge_take_the_flags_that_are_shown() -> None:
    wrong = []
    shown = 0
    for page in PAGES:
        for line in commands(page):
            found = re.search(r"(?:^|\s|/)rocmforge ([a-z]+)(?=\s|$)(.*)", line)
            if found is None:
                continue
            shown += 1
            known = set(_FLAG.findall(help_of(found[1])))
            wrong += [(page.name, found[1], f) for f in _FLAG.findall(found[2]) if f not in known]
            if not known:
                wrong.append((page.name, found[1], "no such command"))
    assert shown > 30
    assert wrong == []


@cache
def flags_of_ours() -> frozenset[str]:
    """Flags of all commands of `rocmforge`, of our other programs, and of our tests."""
    commands_of_ours = (
        "serve",
        "service",
        "run",
        "inspect",
        "backends",
        "doctor",
        "bench",
        "verify",
    )
    found = {flag for command in commands_of_ours for flag in _FLAG.findall(help_of(command))}
    for folder in ("kernels", "benchmarks", "release", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', read(path)))
            found |= set(re.findall(r'addoption\(\s*"(--[a-z-]+)"', read(path)))
    return frozenset(found)


def test_flags_in_the_text_exist() -> None:
    named = {
        (page.name, flag)
        for page in PAGES
        for span in spans(page)
        if span.startswith("--")
        for flag in _FLAG.findall(span)
    }
    assert len(named) > 40
    assert [name for name in named if name[1] not in flags_of_ours()] == []


def test_variables_exist() -> None:
    sources = "".join(
        read(path)
        for folder in ("kernels", "tests", "server", "backends")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
    )
    known = {option.variable for option in settings.options()}
    named = in_pages(r"\bROCMFORGE_[A-Z_]+\b")
    assert len(named) >= 4
    other = {name for name in named if name[1] not in known}
    assert [name for name in other if not name[1].startswith(setting_sources.OTHER_PREFIXES)] == []
    assert [name for name in other if name[1] not in sources] == []


def test_endpoints_exist() -> None:
    routes = {re.sub(r"\{[^}]+\}", "{}", path) for handler in HANDLERS for path in handler.paths}
    known = routes.union(*(command.names for command in COMMANDS))  # of a conversation
    named = in_pages(r"`(?:GET |POST |DELETE )?(/[a-z0-9/_{}]+)`")
    assert len(named) > 25
    wrong = {
        (page, path)
        for page, path in named
        if not path.startswith(FILE_SYSTEM) and re.sub(r"\{[^}]+\}", "{}", path) not in known
    }
    assert wrong == set()


def test_modules_and_recipes_exist() -> None:
    modules = in_pages(r"python -m ((?:kernels|benchmarks|tests|rocmforge)[\w.]*)")
    assert len(modules) > 5
    assert [name for name in modules if find_spec(name[1]) is None] == []
    lines = read(ROOT / "justfile").splitlines()
    recipes = {found[1] for line in lines if (found := re.match(r"([a-z][\w-]*)[^:]*:(?!=)", line))}
    named = in_pages(r"`(?:uv run )?just ([\w-]+)")
    assert len(named) > 3
    assert [name for name in named if name[1] not in recipes] == []


def test_every_setting_of_one_model_is_listed() -> None:
    assert settings.PER_MODEL - set(spans(ROOT / "docs/models.md")) == set()


def test_every_format_with_kernels_is_listed() -> None:
    text = (ROOT / "docs/hardware.md").read_text()
    formats = [str(format) for format in FORMATS.values() if format.has_kernels]
    assert [name for name in formats if not re.search(rf"\b{name}\b", text)] == []


def test_every_type_of_model_that_folders_may_have_is_listed() -> None:
    text = (ROOT / "docs/folders.md").read_text()
    assert [kind for kind in (*DECODERS, *ENCODERS) if f"`{kind}`" not in text] == []


def test_every_size_of_heads_is_listed() -> None:
    text = (ROOT / "docs/hardware.md").read_text()
    (line,) = re.findall(r"^Models need heads of .*$", text, re.MULTILINE)
    sizes = {size for head in CACHED_HEADS for size in (head.key_dim, head.value_dim)}
    assert {int(size) for size in re.findall(r"\d+", line)} == sizes


def test_every_state_of_a_model_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", read(ROOT / "docs/models.md"), re.MULTILINE)
    assert set(rows) == {state.value for state in ModelState}


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_of_the_reference_says_what_the_code_does(name: str) -> None:
    assert read(reference.FOLDER / name) == reference.PAGES[name](), "run `just reference`"


def test_every_finding_of_doctor_is_on_its_page() -> None:
    source = ROOT / "server/rocmforge/commands/diagnosis/findings.py"
    page = read(reference.FOLDER / "findings.md").replace("\\|", "|")
    calls = [
        node
        for node in ast.walk(ast.parse(read(source)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("_warning", "_error")
    ]
    assert len(calls) > 15
    missing = []
    for call in calls:
        message = call.args[1]
        if isinstance(message, ast.Name):  # of `_access`, whose text stands elsewhere
            continue
        parts = message.values if isinstance(message, ast.JoinedStr) else [message]
        words = [part.value for part in parts if isinstance(part, ast.Constant)]
        pattern = ".*".join(re.escape(str(word)) for word in words)
        if not re.search(pattern, page):
            missing.append(words)
    assert missing == []
