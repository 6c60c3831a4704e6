# One list of commands, the same here and in CI. `just` comes with the development tools.

cpp := "kernels tests/platform -name '*.h' -o -name '*.hip' -o -name '*.c' -o -name '*.cpp'"

# What CI runs, but with the kernels of two AMD targets instead of all.
check: lint types test

# Style of Python and C++.
lint:
    ruff check
    ruff format --check
    find {{ cpp }} | xargs clang-format --dry-run -Werror

# Types, strictly.
types:
    mypy

# The test suite; extra arguments go to pytest.
test *arguments:
    pytest {{ arguments }}

# Rewrites files in the project's style.
format:
    ruff check --fix
    ruff format
    find {{ cpp }} | xargs clang-format -i

# Serves the demo model.
serve *arguments:
    rocmforge serve smollm2 {{ arguments }}

# Measures the demo model on this machine.
bench *arguments:
    rocmforge bench smollm2 {{ arguments }}

# Compiles kernels for the HIP backend: names of targets, or amd, nvidia, host, shipped.
build-kernels targets="amd":
    python -m kernels.build --targets {{ targets }}

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
    pytest -q tests/kernels/test_metadata.py --kernel-targets amd
    for wave in 32 64; do
      for order in forward reverse random; do
        pytest -q tests/kernels tests/platform --ignore tests/kernels/test_metadata.py \
          --wave $wave --lane-order $order
      done
    done
