"""The rules of ARCHITECTURE.md that a program can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = {
    "rocmforge": ROOT / "server",
    "rocmforge_hip": ROOT / "backends/hip",
    "rocmforge_reference": ROOT / "backends/reference",
}

# Layers of the server, top first. A module may import its own layer and those below it.
LAYERS = (
    ("rocmforge.__main__", "rocmforge.cli", "rocmforge.ray"),
    ("rocmforge.commands", "rocmforge.arguments"),
    ("rocmforge.wiring",),
    ("rocmforge.engine_options", "rocmforge.model_front"),
    ("rocmforge.api",),
    ("rocmforge.fleet",),
    ("rocmforge.engine.client",),
    ("rocmforge.engine.proof",),
    ("rocmforge.engine.process",),
    ("rocmforge.engine",),
    ("rocmforge.engine.draft",),
    ("rocmforge.engine.schedule",),
    ("rocmforge.engine.cache",),
    ("rocmforge.engine.sequence",),
    ("rocmforge.engine.constraint",),
    ("rocmforge.engine.ipc",),
    ("rocmforge.opening",),
    ("rocmforge.gguf", "rocmforge.huggingface"),
    ("rocmforge.text",),
    ("rocmforge.pixels",),
    ("rocmforge.logits",),
    ("rocmforge.backend",),
    ("rocmforge.models",),
    ("rocmforge.library",),
    ("rocmforge.served_models",),
    ("rocmforge.settings", "rocmforge.setting_sources", "rocmforge.logs", "rocmforge.sensors"),
    ("rocmforge.checkpoint",),
    ("rocmforge.choices", "rocmforge.expected", "rocmforge.latest_used", "rocmforge.sizes"),
    ("rocmforge.errors", "rocmforge"),
)

# What a backend may use of the server.
BACKEND_MAY_IMPORT = (
    "rocmforge.backend",
    "rocmforge.checkpoint",
    "rocmforge.choices",
    "rocmforge.logits",
    "rocmforge.models",
    "rocmforge.errors",
)

# A rank of tensor parallelism is a process of its own: it opens the model's files itself.
OPENS_FILES = ("rocmforge_hip.parallel.worker", "rocmforge.opening.open_checkpoint")

# Modules that only these places may import (prefixes of module names).
CONFINED = {
    "litestar": ("rocmforge.api", "rocmforge.wiring"),
    "prometheus_client": ("rocmforge.api.metrics",),
    "uvicorn": ("rocmforge.commands",),
    "asyncio": (
        "rocmforge.api",
        "rocmforge.fleet",
        "rocmforge.engine.client",
        "rocmforge.wiring",
        "rocmforge.commands",
        "rocmforge.ray",
    ),
    "socket": ("rocmforge.engine", "rocmforge.commands"),
    "rich": ("rocmforge.commands", "rocmforge.cli"),
    # It imports every binding that is installed; `rocm.bindings` gives the one that is asked for.
    "hip": (),
    "rocm": (
        "rocmforge_hip.device.driver",
        "rocmforge_hip.device.runtime",
        "rocmforge_hip.ops.collective",
    ),
    "multiprocessing": ("rocmforge_hip.parallel",),
    "numba": ("rocmforge_hip.jit",),
    "tokenizers": ("rocmforge.text.tokenizer",),
    # Everything else knows a checkpoint, whatever files it was in; `verify` writes a model to try.
    "gguf": ("rocmforge.gguf", "rocmforge.checkpoint.decode"),
    "rocmforge.gguf": ("rocmforge.gguf", "rocmforge.opening", "rocmforge.commands.verify"),
    "rocmforge.huggingface": ("rocmforge.huggingface", "rocmforge.opening"),
    "huggingface_hub": ("rocmforge.library.hub",),
    "httpx2": (
        "rocmforge.library.hub",
        "rocmforge.commands.chat.remote",
        "rocmforge.api.images.fetching",
    ),
    "prompt_toolkit": ("rocmforge.commands.chat.editor",),
    "PIL": ("rocmforge.pixels",),
    "jinja2": ("rocmforge.text.template",),
    "llguidance": ("rocmforge.text.output.grammar", "rocmforge.engine.constraint.grammar"),
    "ray": ("rocmforge.ray",),
    "pickle": (),
}

MAX_LINES = 700
MAX_MODULES = 15


def module_files() -> dict[str, Path]:
    """All modules of the three packages by dotted name."""
    found = {}
    for package, root in SOURCE_ROOTS.items():
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path
    return found


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """What several tests look at in a module's syntax tree: its imports, globals and attributes."""
    kinds = (ast.Import, ast.ImportFrom, ast.Global, ast.Attribute)
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


@cache
def imports(module: str) -> frozenset[str]:
    """Dotted names a module imports, wherever in the file; type-checking imports count too."""
    return frozenset(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} uses a relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_under(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def layer_of(module: str) -> int | None:
    """The layer with the longest prefix that matches."""
    matches = [
        (len(prefix), number)
        for number, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        if is_under(module, (prefix,)) and (prefix != "rocmforge" or module == "rocmforge")
    ]
    return max(matches)[1] if matches else None


MODULES = module_files()
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")
SERVER_MODULES = [name for name in MODULES if is_under(name, ("rocmforge",))]


def test_every_module_of_the_server_stands_in_a_layer() -> None:
    assert [module for module in SERVER_MODULES if layer_of(module) is None] == []


def test_the_server_imports_only_its_own_layer_and_below() -> None:
    layers = {module: layer_of(module) or 0 for module in SERVER_MODULES}
    upward = {
        (module, name)
        for module, layer in layers.items()
        for name in imports(module)
        if layers.get(name, layer) < layer
    }
    assert upward == set()


def test_the_server_never_imports_a_backend() -> None:
    backends = ("rocmforge_hip", "rocmforge_reference")
    found = {
        (module, name)
        for module in SERVER_MODULES
        for name in imports(module)
        if is_under(name, backends)
    }
    assert found == set()


def test_a_backend_imports_only_the_shared_part_of_the_server() -> None:
    found = {
        (module, name)
        for module in MODULES.keys() - set(SERVER_MODULES)
        for name in imports(module)
        if is_under(name, ("rocmforge",)) and not is_under(name, BACKEND_MAY_IMPORT)
    }
    worker, opener = OPENS_FILES
    assert found <= {(worker, opener), (worker, opener.rpartition(".")[0])}


def part_of(package: str, module: str) -> str:
    """The module or folder of a package that a module of it belongs to."""
    if module == package:
        return "__init__"
    return module.removeprefix(package + ".").partition(".")[0]


def circle_within(package: str) -> list[str]:
    """A circle of imports between the modules and folders of a package; empty if there is none.

    A circle between modules anywhere is one between the parts of the package that holds them all.
    """
    parts: TopologicalSorter[str] = TopologicalSorter()
    for module in filter(lambda name: is_under(name, (package,)), MODULES):
        for name in imports(module):
            if is_under(name, (package,)) and name in MODULES:
                importer, imported = part_of(package, module), part_of(package, name)
                if importer != imported:
                    parts.add(importer, imported)
    try:
        parts.prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_and_folders_import_each_other_in_no_circle(package: str) -> None:
    assert circle_within(package) == []


def test_no_folder_holds_more_modules_than_a_reader_can_look_over() -> None:
    crowded = {
        package
        for package in PACKAGES
        if len([*MODULES[package].parent.glob("[!_]*.py")]) > MAX_MODULES
    }
    assert crowded == set()


@pytest.mark.parametrize("library", CONFINED)
def test_confined_libraries_stay_where_they_belong(library: str) -> None:
    strays = {
        (module, name)
        for module in MODULES
        if not is_under(module, CONFINED[library])
        for name in imports(module)
        if is_under(name, (library,))
    }
    assert strays == set()


def test_no_type_of_gguf_is_named_outside_its_reader() -> None:
    named = {
        (module, name)
        for module, path in MODULES.items()
        if not is_under(module, CONFINED["gguf"])
        for name in re.findall(r"\b(?:GGML|Gguf)\w+", path.read_text(encoding="utf-8"))
    }
    assert named == set()


def test_only_settings_and_the_choice_of_hip_library_touch_the_environment() -> None:
    reads = {
        (module, node.lineno)
        for module in MODULES.keys()
        - {"rocmforge.setting_sources", "rocmforge_hip.device.platform"}
        for node in nodes(module)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
    }
    assert reads == set()


def test_no_module_rebinds_its_globals() -> None:
    rebound = {
        (module, node.lineno)
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Global)
    }
    assert rebound == set()


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    files = [
        path
        for folder in ("server", "backends", "kernels", "tests")
        for suffix in ("py", "hip", "h", "c", "cpp")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
        if "node_modules" not in path.parts and "lib" not in path.parts
    ]
    long = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if (lines := path.read_text(encoding="utf-8").count("\n")) > MAX_LINES
    }
    assert long == {}


def test_architecture_md_is_a_map_of_at_most_150_lines_that_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    map_, glossary, rest = re.split(r"^(## Glossary\n.*?\n)(?=## )", text, flags=re.M | re.S)
    assert (map_ + rest).count("\n") <= 150
    assert glossary.count("\n") <= 100
    packages = [p.parent for p in MODULES.values() if p.name == "__init__.py"]
    assert [str(p.name) for p in packages if f"{p.name}/" not in text] == []


def test_importing_the_command_line_opens_no_backend_and_no_web_framework() -> None:
    program = "import sys, rocmforge.cli; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    heavy = {"litestar", "numpy", "rocm", "rocmforge_hip", "rocmforge_reference", "tokenizers"}
    assert heavy & set(output.split()) == set()
