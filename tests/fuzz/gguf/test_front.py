"""Mutated model files, opened as `serve` and `inspect` open them: read, or refused in words.

Header, metadata, tokenizer, chat template, configuration and tensor directory are read as they are
when a server starts; some files are loaded by the reference backend, too. Only typed errors may
come of it, in bounded time and memory.

How many is said by $ROCMFORGE_TEST_MUTATIONS (default: 1500, for CI).
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGUFValueType as V

from rocmforge.commands import inspect
from rocmforge.engine_options import token_pieces
from rocmforge.errors import BadTemplate, RequestError, RocmForgeError
from rocmforge.model_front import read_front
from rocmforge.settings import Settings
from rocmforge_reference.backend import create
from tests.api.tiny import CHATML
from tests.data.models.text import tiny_encoders
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_adapters import write_random_adapter
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL
from tests.unit.text.vocabularies import byte_level, sentencepiece

COUNT = int(os.environ.get("ROCMFORGE_TEST_MUTATIONS", "1500"))
FILES_OF_A_SEED = 500
SECONDS = 10
"""For one file; the slowest takes a tenth of one where nothing else runs."""
GROWTH_KIB = 150 * 1024
"""Over all files of a seed. They are of at most 250 KiB."""
ADDRESS_SPACE = 4 << 30
"""Beyond what the process has. Who asks for more gets a MemoryError, which is no refusal."""

OPTIONS = replace(SMALL, max_context=64, max_sequences=1, max_batched_tokens=16, kv_blocks=4)
NUMBERS = (
    *(0, 1, 2, 3, 7, 13, 31, 32, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
TEXTS = (
    *(b"", b"\x00", b"\xff\xfe", b"llama", b"gemma3", b"qwen3", b"bert", b"t5", b"gpt2", b"rwkv"),
    *(b"{% for i in range(10**9) %}x{% endfor %}", b"{{ 'x' * 10**9 }}", b"{{ ''.__class__ }}"),
    *(b"{{" * 500, b"(" * 5000, b"../../etc/passwd", b"{% macro m() %}{{ m() }}{% endmacro %}"),
)

KEYS = tuple(
    key.encode()
    for key in (
        *("general.architecture", "general.name", "general.type"),
        *("adapter.type", "adapter.lora.alpha"),
        *(
            f"{architecture}.{name}"
            for architecture in ("llama", "gemma3", "bert")
            for name in (
                *("context_length", "embedding_length", "feed_forward_length", "block_count"),
                *("vocab_size", "attention.head_count", "attention.head_count_kv"),
                *("attention.key_length", "attention.value_length", "attention.sliding_window"),
                *("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
                *("attention.causal", "pooling_type", "rope.freq_base", "rope.scaling.type"),
                *("rope.scaling.factor", "rope.dimension_count"),
            )
        ),
        *(
            f"tokenizer.{name}"
            for name in (
                *("ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.merges"),
                *("ggml.scores", "ggml.bos_token_id", "ggml.eos_token_id", "chat_template"),
                *("ggml.unknown_token_id", "ggml.cls_token_id", "ggml.token_type_count"),
            )
        ),
    )
)
WIDTHS = {
    **dict.fromkeys((V.UINT8, V.INT8, V.BOOL), 1),
    **dict.fromkeys((V.UINT16, V.INT16), 2),
    **dict.fromkeys((V.UINT32, V.INT32, V.FLOAT32), 4),
    **dict.fromkeys((V.UINT64, V.INT64, V.FLOAT64), 8),
}


def seeds(folder: Path) -> list[bytes]:
    """Valid models with tokenizers of each kind."""
    found = []
    for name, tokenizer in (("llama", byte_level()), ("gemma3", sentencepiece())):
        model = by_name(name)
        size = len(tokenizer["tokenizer.ggml.tokens"])
        model = replace(model, config=model.config | {"vocab_size": size, "num_hidden_layers": 2})
        numbers = {
            "tokenizer.ggml.token_type": np.array(tokenizer["tokenizer.ggml.token_type"], np.int32),
            "tokenizer.ggml.scores": np.arange(size, dtype=np.float32),
            "tokenizer.chat_template": CHATML,
        }
        metadata = gguf_metadata(model) | tokenizer | numbers
        path = write_gguf(folder / f"{name}.gguf", metadata, gguf_tensors(model))
        found.append(path.read_bytes())
    bert = tiny_encoders.by_name("bert")
    found.append(tiny_encoders.write_encoder(bert, folder).read_bytes())
    return found


class Mutator:
    """Changes metadata values, and bytes where names are: around those are types and lengths."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._places: dict[bytes, list[int]] = {}

    def mutate(self, data: bytes) -> bytes:
        """A few changes; half of the files remain well-formed."""
        mutated = bytearray(data)
        if self._dice.random() < 0.7:
            self._change_value(mutated, data)
        else:
            for _ in range(self._dice.choice((1, 1, 2, 4))):
                self._change_bytes(mutated, self._place(data))
        return bytes(mutated)

    def _change_value(self, data: bytearray, original: bytes) -> None:
        """Another value of the same type for one key, or another type for the same value."""
        dice = self._dice
        key = dice.choice([name for name in KEYS if name in original])
        at = data.index(key) + len(key)
        kind = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if dice.random() < 0.05:
            data[at - 4 : at] = dice.randrange(14).to_bytes(4, "little")
            return
        if kind == V.ARRAY:
            kind = int.from_bytes(data[at : at + 4], "little")
            count = int.from_bytes(data[at + 4 : at + 12], "little")
            at += 12
            for _ in range(dice.randrange(count)):
                at += _size(data, at, kind)
        size = _size(data, at, kind)
        if kind == V.STRING:
            text = dice.choice(TEXTS)
            data[at : at + size] = len(text).to_bytes(8, "little") + text
            data += bytes(8192)  # so that the tensors still lie in the file
        else:
            number = dice.choice(NUMBERS) % 2 ** (8 * size)
            data[at : at + size] = number.to_bytes(size, "little")

    def _place(self, data: bytes) -> int:
        if data not in self._places:
            marks = (*KEYS, b"blk.", b".weight")
            self._places[data] = [i for mark in marks for i in _all(data, mark)] + [0, 4, 8, 16]
        return max(0, self._dice.choice(self._places[data]) + self._dice.choice(range(-8, 56)))

    def _change_bytes(self, data: bytearray, at: int) -> None:
        dice = self._dice
        length = dice.choice((1, 1, 2, 4, 8, 8, 40))
        match dice.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length]
            case 3:
                width = dice.choice((4, 8))
                number = dice.choice(NUMBERS) % 2 ** (8 * width)
                data[at : at + width] = number.to_bytes(width, "little")
            case 4:
                text = dice.choice(TEXTS)
                data[at : at + len(text)] = text
            case _:
                source = dice.randrange(max(1, len(data)))
                data[at : at + length] = data[source : source + length]


def _size(data: bytearray, at: int, kind: int) -> int:
    """Bytes of a value that is not an array."""
    if kind == V.STRING:
        return 8 + int.from_bytes(data[at : at + 8], "little")
    return WIDTHS[V(kind)]


def _all(data: bytes, mark: bytes) -> Iterator[int]:
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + 1)


class TooSlow(BaseException):
    """Not an `Exception`: nothing in between may take it for an error of its own."""


@contextmanager
def limits() -> Iterator[Callable[[int], object]]:
    """Bounds memory; gives a function that ends what takes longer than so many seconds."""

    def stop(*_: object) -> None:
        raise TooSlow

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + ADDRESS_SPACE, hard))
    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield signal.alarm
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def serve(path: Path) -> None:
    """What a server does with a file before it starts its engine, and with the first request."""
    front = read_front(str(path), Settings())
    tokenizer = front.tokenizer
    token_pieces(tokenizer)
    text = "Hello world, hé <|end|>"
    if front.config.causal:
        ids = tokenizer.encode(text, parse_special=True)
    else:
        ids = tokenizer.encode_whole(text)
    tokenizer.decode(ids)
    with suppress(RequestError, BadTemplate):
        front.templates.select().render([{"role": "user", "content": "hello"}])


def show(path: Path) -> None:
    """`rocmforge inspect --json`."""
    asked = argparse.Namespace(model=str(path), plan=False, memory=None, json=True, tensors=False)
    with redirect_stdout(StringIO()):
        inspect.run(asked, Settings())


def load(path: Path) -> None:
    """Loading by the reference backend."""
    load_file(create(), path, OPTIONS).close()


def outcome(use: Callable[[Path], None], path: Path) -> str:
    """ "read", or the kind of the refusal."""
    try:
        use(path)
    except RocmForgeError as error:
        return type(error).__name__ if error.message else "no message"
    return "read"


def peak_kib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.parametrize("use", [serve, show, load])
def test_the_files_to_be_mutated_are_valid(
    valid: list[bytes], use: Callable[[Path], Any], tmp_path: Path
) -> None:
    for data in valid:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        assert outcome(use, path) == "read"


def use_mutated(
    seed: int, valid: list[bytes], uses: Sequence[Callable[[Path], None]], folder: Path
) -> None:
    """Mutates one file after the other and uses each of them somehow."""
    dice = random.Random(seed)
    mutator = Mutator(dice)
    path = folder / "mutated.gguf"
    outcomes: Counter[str] = Counter()
    before = peak_kib()
    with limits() as set_timer:
        for number in range(FILES_OF_A_SEED):
            path.write_bytes(mutator.mutate(dice.choice(valid)))
            use = dice.choice(uses)
            set_timer(SECONDS)
            try:
                outcomes[outcome(use, path)] += 1
            except BaseException as error:
                set_timer(0)
                kept = path.rename(Path.cwd() / f"crash-{seed}-{number}.gguf")
                raise AssertionError(f"{use.__name__}({kept}): {error!r}") from error
    assert peak_kib() - before < GROWTH_KIB
    assert not outcomes["no message"]
    assert outcomes["read"], "nothing was read: the mutations are too wild"
    assert outcomes.total() > outcomes["read"], "nothing was refused: the mutations are too tame"


@pytest.mark.parametrize("seed", range(-(-COUNT // FILES_OF_A_SEED)))
def test_a_mutated_model_is_read_or_refused(seed: int, valid: list[bytes], tmp_path: Path) -> None:
    use_mutated(seed, valid, (serve, serve, serve, show, load), tmp_path)


@pytest.mark.parametrize("seed", range(-(-COUNT // FILES_OF_A_SEED // 10)))
def test_a_mutated_adapter_is_read_or_refused(
    seed: int, valid: list[bytes], tmp_path: Path
) -> None:
    base = tmp_path / "llama.gguf"
    base.write_bytes(valid[0])
    adapter = write_random_adapter(tmp_path / "adapter.gguf", base, seed).read_bytes()

    def adapt(path: Path) -> None:
        read_front(str(base), Settings(lora=(f"a={path}",)))

    use_mutated(seed, [adapter], [adapt], tmp_path)
