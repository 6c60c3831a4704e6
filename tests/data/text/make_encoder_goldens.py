"""Makes `encoder_tokens.json` and `encoder_vectors.json` with llama.cpp.

    python -m tests.data.text.make_encoder_goldens VENDOR_LLAMA_CPP

Needs `llama-cpp-python`, which the tests do not. The argument is the folder `vendor/llama.cpp` of
its sdist.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.data.models.text.tiny_encoders import by_name, write_with_byte_level_bpe
from tests.data.text.make_goldens import digest, texts

VOCABULARIES = ("ggml-vocab-bert-bge.gguf", "ggml-vocab-nomic-bert-moe.gguf")


PRE_TOKENIZERS = {"modern-bert": "modern-bert", "jina-bert-v2": "jina-v2-de"}
LINES = (
    "Rain in Spain stays mainly in the plain.",
    "def f(x):\n    return x**2  # 3.14, don't\t\u00fcber na\u00efve \u4f60\u597d",
    " ".join(f"word{index} of a longer text," for index in range(12)),
)


def main(llama_cpp: Path) -> None:
    """Both files."""
    write_tokens(llama_cpp)
    write_vectors(llama_cpp)


def write_vectors(llama_cpp: Path) -> None:
    """Ids and embeddings of texts by tiny encoders with a real vocabulary."""
    library: Any = import_module("llama_cpp")
    found: dict[str, Any] = {}
    for name, pre in PRE_TOKENIZERS.items():
        with tempfile.TemporaryDirectory() as folder:
            gpt2 = llama_cpp / "models/ggml-vocab-gpt-2.gguf"
            path = write_with_byte_level_bpe(by_name(name), pre, gpt2, Path(folder))
            model = library.Llama(str(path), embedding=True, n_ctx=128, verbose=False)
            found[name] = [
                {
                    "ids": model.tokenize(line.encode(), add_bos=True),
                    "vector": [float(f"{value:.5g}") for value in model.embed(line)],
                }
                for line in LINES
            ]
    path = Path(__file__).with_name("encoder_vectors.json")
    path.write_text(json.dumps(found).replace("}, {", "},\n{") + "\n")


def write_tokens(llama_cpp: Path) -> None:
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
