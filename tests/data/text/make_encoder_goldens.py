"""Makes `encoder_tokens.json` from llama.cpp's own tokenizer.

    python -m tests.data.text.make_encoder_goldens VENDOR_LLAMA_CPP

Needs `llama-cpp-python`, which the tests do not. The argument is the folder `vendor/llama.cpp` of
its sdist.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.data.text.make_goldens import digest, texts

VOCABULARIES = ("ggml-vocab-bert-bge.gguf", "ggml-vocab-nomic-bert-moe.gguf")


def main(llama_cpp: Path) -> None:
    """Digests of the ids of each text, without and with the tokens around it."""
    library: Any = import_module("llama_cpp")
    found = {}
    for name in VOCABULARIES:
        model = library.Llama(str(llama_cpp / "models" / name), vocab_only=True, verbose=False)
        found[name] = {
            mode: [digest(model.tokenize(text.encode(), add_bos=around)) for text in texts()]
            for mode, around in (("plain", False), ("whole", True))
        }
    path = Path(__file__).with_name("encoder_tokens.json")
    path.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
