"""Makes `sentencepiece.json` with the package of that name.

    python -m tests.data.text.make_sentencepiece_goldens

Needs `sentencepiece`, which the tests do not. It trains two vocabularies as Llama's and Gemma's
are, and records their tokens, and what the package makes of each text with a file that the tests
write.
"""

from __future__ import annotations

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.data.text.make_goldens import digest, texts
from tests.support.files.sentencepiece_writer import model_bytes, pieces_of

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the cat sat on the mat.",
    "Numbers like 2024, 17 and 3.14159 are cut into digits; words are not.",
    "Grüße aus Köln, naïve café, 東京は大きい。 Don't they're I'll we've.",
    "def f(x):\n    return x ** 2  # squared\n\n\n        deep",
)
USER_DEFINED = {"llama": [], "gemma": ["\n\n", "▁▁", "<table>"]}


def main() -> None:
    """The file."""
    library: Any = import_module("sentencepiece")
    found = {}
    for name, user_defined in USER_DEFINED.items():
        file = io.BytesIO()
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 3),
            model_writer=file,
            model_type="bpe",
            vocab_size=520,
            hard_vocab_limit=False,
            byte_fallback=True,
            split_digits=True,
            allow_whitespace_only_pieces=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=name == "llama",
            user_defined_symbols=user_defined,
            minloglevel=2,
        )
        trained = library.SentencePieceProcessor(model_proto=file.getvalue())
        count = trained.get_piece_size()
        pieces = [trained.id_to_piece(index) for index in range(259 + len(user_defined), count)]
        data = model_bytes(pieces_of(pieces, user_defined), dummy_prefix=name == "llama")
        written = library.SentencePieceProcessor(model_proto=data)
        digests = [digest(written.encode(text)) for text in texts()]
        found[name] = {"user_defined": user_defined, "pieces": pieces, "digests": digests}
    path = Path(__file__).with_name("sentencepiece.json")
    path.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
