# One list of commands, the same here and in CI. `just` comes with the development tools.

# Everything that CI runs.
check: lint types test

# Style of Python.
lint:
    ruff check
    ruff format --check

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

# Serves the demo model.
serve *arguments:
    rocmforge serve smollm2 {{ arguments }}

# Measures the demo model on this machine.
bench *arguments:
    rocmforge bench smollm2 {{ arguments }}
