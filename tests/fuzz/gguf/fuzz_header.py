"""Coverage-guided fuzzing of the header parser, run manually.

    uv pip install atheris
    python tests/fuzz/gguf/fuzz_header.py -max_len=4096 -max_total_time=600 CORPUS

CORPUS is a folder of small GGUF files to start from; what is found is added to it. Anything but a
`ModelLoadError` ends the run and leaves the input in `crash-*`: turn it into a test of
tests/unit/gguf/test_bad_files.py. Atheris is no dependency of the tests, since it has wheels for
few platforms.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from rocmforge.errors import ModelLoadError

atheris = import_module("atheris")

with atheris.instrument_imports(include=["rocmforge.gguf"]):
    from rocmforge.gguf.header import parse_header


def parse(data: bytes) -> None:
    """The fuzz target."""
    with suppress(ModelLoadError):
        parse_header(data, Path("fuzzed.gguf"))


if __name__ == "__main__":
    atheris.Setup(sys.argv, parse)
    atheris.Fuzz()
