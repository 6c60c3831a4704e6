# One list of commands, the same here and in CI. `just` comes with the development tools.

export PATH := justfile_directory() / ".venv/bin:" + env("PATH")
# Bytecode is kept whatever the environment says: without it half of the time goes into compiling.
export PYTHONDONTWRITEBYTECODE := ""

cpp := "kernels tests/platform -name '*.h' -o -name '*.hip' -o -name '*.c' -o -name '*.cpp'"
# Tests of one file share fixtures that take long, so they go to the same worker.
parallel := "-n auto --dist loadfile"

# What your changes since main concern: style, types, and the tests of the changed files.
check base="main":
    #!/usr/bin/env bash
    set -euo pipefail
    changed() { python -m tests.choose --changed "{{ base }}" "$@"; }
    matching() { grep -E "$1" <<< "$files" || true; }
    files=$(changed --files)
    matching '\.py$' | xargs -r ruff check
    matching '\.py$' | xargs -r ruff format --check
    matching '^(kernels|tests/platform)/.*\.(h|hip|c|cpp)$' | xargs -r clang-format --dry-run -Werror
    mypy
    changed | xargs -r pytest -q

# Unit tests that need no kernels, no processes and no real models: about 10 s on two cores.
fast *arguments:
    python -m tests.fast {{ arguments }}

# The tests of files or folders, wherever they are: `just test-of server/rocmforge/engine/core.py`.
test-of +paths:
    #!/usr/bin/env bash
    set -euo pipefail
    python -m tests.choose {{ paths }} | xargs -r pytest -q

# What CI runs, but with the kernels of two AMD targets instead of all.
all: lint types test

# Style of Python and C++, spelling and prose; tests hold words that are wrong or cut on purpose.
lint:
    ruff check
    ruff format --check
    find {{ cpp }} | xargs clang-format --dry-run -Werror
    git ls-files -z | grep -zv -e '^tests/.*\.\(py\|json\)$' -e '\.lock$' -e '-lock.json$' | xargs -0 codespell
    python -m docs.tools.prose

# Types, strictly.
types:
    mypy

# The test suite, on all cores; extra arguments go to pytest.
test *arguments:
    pytest {{ parallel }} {{ arguments }}

# Rewrites files in the project's style.
format:
    ruff check --fix
    ruff format
    find {{ cpp }} | xargs clang-format -i

# Installs exactly what requirements.lock names, and this checkout.
install:
    uv pip sync --require-hashes requirements.lock
    uv pip install --no-deps --no-build-isolation --editable .

# Writes requirements.lock after pyproject.toml has changed; with --upgrade, the newest versions.
lock *arguments:
    UV_CUSTOM_COMPILE_COMMAND="just lock" uv pip compile --quiet --universal --generate-hashes \
      --no-emit-index-url --no-annotate --output-file requirements.lock \
      --extra otel --extra multi --extra ray --group demo --group dev --group docs --group release {{ arguments }} pyproject.toml

# All tests but those of a release, which the lock is for, with the newest versions of everything.
latest *arguments:
    uv venv --clear build/latest
    uv pip install --python build/latest --upgrade --editable . --group demo --group dev
    build/latest/bin/pytest {{ parallel }} --ignore tests/unit/test_release.py {{ arguments }}

# Serves the demo model.
serve *arguments:
    rocmforge serve smollm2 {{ arguments }}

# Measures the demo model on this machine.
bench *arguments:
    rocmforge bench smollm2 {{ arguments }}

# The bill of materials of a wheel, beside it, as CycloneDX: `just sbom dist/rocmforge-*.whl`.
sbom wheel:
    python -m release.sbom {{ wheel }}

# Fetches the libraries of the page at /.
page:
    python -m page.build

# Writes the pages of docs/reference from the code.
reference:
    python -m docs.tools.reference

# Builds the site of the documentation into build/site; `mkdocs serve` shows it while you write.
site *arguments:
    NO_MKDOCS_2_WARNING=1 mkdocs build --strict {{ arguments }}

# Compiles kernels for the HIP backend: names of targets, or amd, nvidia, host, shipped.
build-kernels targets="amd":
    python -m kernels.build --targets {{ targets }}

# Tells editors (clangd) how the kernels are compiled: for an AMD target.
compile-commands target="gfx1100":
    python -m kernels.compile_commands --target {{ target }}

# Registers, LDS, occupancy and instruction mix of each kernel: --targets, --kernels.
kernel-report *arguments:
    python -m kernels.report {{ arguments }}

# The kernel tests on a GPU: platform rocm or nvidia, whose kernels are built.
test-gpu platform="rocm" *arguments:
    pytest tests/kernels --platform {{ platform }} {{ arguments }}

# Measures the kernels on a GPU: platform rocm or nvidia.
bench-kernels platform="rocm":
    python -m benchmarks.kernels.linear --platform {{ platform }}
    python -m benchmarks.kernels.attention --platform {{ platform }}
    python -m benchmarks.kernels.encoder --platform {{ platform }}

# Kernels without a GPU: the code of all AMD targets, and the tests in all lane orders and waves.
check-kernels: (build-kernels "amd")
    #!/usr/bin/env bash
    set -euo pipefail
    pytest -q tests/kernels/compiled/test_metadata.py --kernel-targets amd
    for wave in 32 64; do
      for order in forward reverse random; do
        pytest -q tests/kernels tests/platform --ignore tests/kernels/compiled/test_metadata.py \
          --wave $wave --lane-order $order
      done
    done
