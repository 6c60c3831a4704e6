"""Writes the kernel of a logits processor: loops, reductions and calls of its functions.

The text is Python in numba's subset. Names in it that are not defined there: `gpu` (numba's
module of the target), `np`, `THREADS`, `advance` (pointer arithmetic), `block_sum`, `block_max`,
`block_min`, `ordered`, and the processor's functions by the names of `function_names`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocmforge.errors import ConfigurationError
from rocmforge.logits.processor import (
    HISTORY_VALUES,
    ROW_VALUES,
    Function,
    LogitsProcessor,
    Nucleus,
    Reduction,
    arguments_of,
)

MAX_SCRATCH_ROWS: Final = 4
"""Numbers for each token of the vocabulary that a kernel may keep between its loops."""

ARGUMENTS: Final = (
    ("scores", "f32*"),  # [L, V]
    ("order", "i32*"),  # [U], uses in the order of their launches
    ("rows", "i32*"),  # [U]
    ("numbers", "f32*"),  # [U, num_numbers]
    ("token_sets", "u32*"),  # [U, num_words]
    ("windows", "i32*"),  # [U]
    ("uniforms", "f32*"),  # [U]
    ("positions", "i32*"),  # [L]
    ("history_offsets", "i32*"),  # [L + 1]
    ("histories", "i32*"),
    ("prompt_lengths", "i32*"),  # [L]
    ("row_source", "i32*"),  # [L]
    ("sampled", "i32*"),
    ("scratch", "f32*"),  # [blocks, MAX_SCRATCH_ROWS, V]
    ("scratch_bits", "i32*"),  # the same memory
    ("vocab", "i32"),
    ("first", "i32"),  # of `order`, for block 0
    ("num_numbers", "i32"),
    ("num_words", "i32"),
)
"""Name and type of each argument of a kernel; a star is a pointer."""

HELPERS: Final = '''
def block_sum(shared, value):
    lane = gpu.threadIdx.x
    gpu.syncthreads()
    shared[lane] = value
    width = THREADS // 2
    while width > 0:
        gpu.syncthreads()
        if lane < width:
            shared[lane] = shared[lane] + shared[lane + width]
        width = width // 2
    gpu.syncthreads()
    return shared[0]


def block_max(shared, value):
    lane = gpu.threadIdx.x
    gpu.syncthreads()
    shared[lane] = value
    width = THREADS // 2
    while width > 0:
        gpu.syncthreads()
        if lane < width and shared[lane] < shared[lane + width]:
            shared[lane] = shared[lane + width]
        width = width // 2
    gpu.syncthreads()
    return shared[0]


def block_min(shared, value):
    return -block_max(shared, -value)


def ordered(bits):
    """The bits of a float as a number from 0 to 2**32 - 1, in the order of the floats."""
    if bits >= 0:
        return np.int64(bits) + np.int64(2147483648)
    return np.int64(-1) - np.int64(bits)
'''

_START: Final = {"sum": "0.0", "max": "-np.inf", "min": "np.inf"}
_BETTER: Final = {"max": ">", "min": "<"}


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel to compile."""

    text: str  # defines `kernel`
    functions: dict[str, Function]  # what it calls, by the name it calls it


def kernel_source(processor: LogitsProcessor) -> KernelSource:
    """Writes the kernel of a processor.

    Raises:
        ConfigurationError: It needs more memory for each token than kernels have.
    """
    return _Writer(processor).write()


class _Writer:
    def __init__(self, processor: LogitsProcessor) -> None:
        self._processor = processor
        self._lines: list[str] = []
        self._functions: dict[str, Function] = {}
        self._num_rows = 0
        self._per_token = {"logit": "logits[token]", "token": "np.int32(token)"}

    def write(self) -> KernelSource:
        self._begin()
        for need in self._processor.needs:
            if isinstance(need, Nucleus):
                self._nucleus(need)
            elif need.over == "vocabulary":
                self._over_vocabulary(need)
            elif need.per_token:
                self._over_history_by_token(need)
            else:
                self._over_history(need)
        self._map()
        if self._num_rows > MAX_SCRATCH_ROWS:
            raise ConfigurationError(
                f"The logits processor {self._processor.name!r} of {self._processor.origin} keeps "
                f"{self._num_rows} numbers for each token, but kernels have room for "
                f"{MAX_SCRATCH_ROWS}: a reduction per token takes one, a nucleus two."
            )
        return KernelSource("\n".join(self._lines) + "\n", self._functions)

    def _add(self, text: str, *, indent: int = 1) -> None:
        self._lines += ["    " * indent + line if line else "" for line in text.splitlines()]

    def _call(self, function: Function) -> str:
        name = f"f{len(self._functions)}_{function.__name__}"
        self._functions[name] = function
        arguments = [self._spelled(each) for each in arguments_of(function)]
        return f"{name}({', '.join(arguments)})"

    def _spelled(self, name: str) -> str:
        """Returns the kernel's name of what a function asks for: names of users have a prefix."""
        if name in ROW_VALUES or name in HISTORY_VALUES:
            return name
        return self._per_token.get(name, f"v_{name}")

    def _next_row(self) -> int:
        self._num_rows += 1
        return self._num_rows - 1

    def _begin(self) -> None:
        self._add(f"def kernel({', '.join(name for name, _ in ARGUMENTS)}):", indent=0)
        self._add(
            f"""\
lane = gpu.threadIdx.x
use = order[first + gpu.blockIdx.x]
row = rows[use]
logits = advance(scores, np.int64(row) * vocab)
scratch_rows = np.int64(gpu.blockIdx.x) * {MAX_SCRATCH_ROWS} * vocab
shared = gpu.shared.array(THREADS, np.float64)
position = positions[row]
uniform = uniforms[use]"""
        )
        for index, parameter in enumerate(self._processor.numbers):
            value = f"numbers[use * num_numbers + {index}]"
            if isinstance(parameter.default, int):
                value = f"np.int32({value})"
            self._add(f"v_{parameter.name} = {value}")
        if self._processor.token_set is not None:
            name = self._processor.token_set.name
            self._add(f"v_{name} = advance(token_sets, np.int64(use) * num_words)")
        if self._processor.reads_history:
            self._begin_history()

    def _begin_history(self) -> None:
        self._add(
            """\
values = gpu.shared.array(THREADS, np.float32)
places = gpu.shared.array(THREADS, np.int32)
begin = history_offsets[row]
end = history_offsets[row + 1]
if lane == 0 and end > begin and histories[end - 1] < 0:
    histories[end - 1] = max(sampled[row_source[row]], np.int32(0))
gpu.syncthreads()
length = min(windows[use], end - begin)
history = advance(histories, np.int64(end - length))
prompt_length = max(prompt_lengths[row] - (end - begin - length), np.int32(0))"""
        )

    def _reduce(self, need: Reduction, place: str, count: str) -> None:
        self._add(f"total = np.float32({_START[need.by]})")
        self._add(f"for {place} in range(lane, {count}, THREADS):")
        if need.by == "sum":
            self._add(f"total += {self._call(need.function)}", indent=2)
        else:
            self._add(
                f"""\
value = {self._call(need.function)}
if value {_BETTER[need.by]} total:
    total = np.float32(value)""",
                indent=2,
            )
        self._add(f"v_{need.name} = np.float32(block_{need.by}(shared, total))")

    def _over_vocabulary(self, need: Reduction) -> None:
        self._reduce(need, "token", "vocab")

    def _over_history(self, need: Reduction) -> None:
        self._reduce(need, "index", "length")

    def _over_history_by_token(self, need: Reduction) -> None:
        """Walks over the history, a place a thread at a time, so that one writes for each token."""
        row = f"row_{need.name}"
        combine = "total + values[other]"
        if need.by != "sum":
            combine = f"values[other] if values[other] {_BETTER[need.by]} total else total"
        known = combine.replace("values[other]", "known")
        self._add(
            f"""\
{row} = advance(scratch, scratch_rows + {self._next_row()} * vocab)
for token in range(lane, vocab, THREADS):
    {row}[token] = np.float32(np.nan)
for piece in range(0, length, THREADS):
    index = piece + lane
    gpu.syncthreads()
    if index < length:
        values[lane] = {self._call(need.function)}
        places[lane] = history[index]
    gpu.syncthreads()
    if index < length:
        is_last = True
        for other in range(lane + 1, min(THREADS, length - piece)):
            if places[other] == places[lane]:
                is_last = False
        if is_last:
            total = values[lane]
            for other in range(lane):
                if places[other] == places[lane]:
                    total = {combine}
            known = {row}[places[lane]]
            if known == known:
                total = {known}
            {row}[places[lane]] = total
gpu.syncthreads()"""
        )
        missing = f"np.float32({need.missing!r})"
        self._per_token[need.name] = (
            f"({row}[token] if {row}[token] == {row}[token] else {missing})"
        )

    def _nucleus(self, need: Nucleus) -> None:
        """Finds the threshold two bits at a time: the tokens below it weigh at most the share."""
        score, weight = self._next_row(), self._next_row()
        row = f"row_{need.name}"
        self._add(
            f"""\
{row} = advance(scratch, scratch_rows + {score} * vocab)
bits_of = advance(scratch_bits, scratch_rows + {score} * vocab)
weights_of = advance(scratch, scratch_rows + {weight} * vocab)
for token in range(lane, vocab, THREADS):
    pair = {self._call(need.function)}
    {row}[token] = pair[0]
    weights_of[token] = pair[1]
key = np.int64(0)
width = np.int64(1073741824)
while width > 0:
    one = np.float32(0.0)
    two = np.float32(0.0)
    three = np.float32(0.0)
    for token in range(lane, vocab, THREADS):
        above = ordered(bits_of[token]) - key
        weight = weights_of[token]
        one += weight if above < width else np.float32(0.0)
        two += weight if above < 2 * width else np.float32(0.0)
        three += weight if above < 3 * width else np.float32(0.0)
    if block_sum(shared, three) <= v_{need.share}:
        key += 3 * width
    elif block_sum(shared, two) <= v_{need.share}:
        key += 2 * width
    elif block_sum(shared, one) <= v_{need.share}:
        key += width
    width = width >> 2
total = np.float32(-np.inf)
for token in range(lane, vocab, THREADS):
    if ordered(bits_of[token]) <= key and {row}[token] > total:
        total = {row}[token]
limit_{need.name} = block_max(shared, total)"""
        )
        self._per_token[need.name] = f"({row}[token] <= limit_{need.name})"

    def _map(self) -> None:
        self._add(
            f"""\
for token in range(lane, vocab, THREADS):
    if logits[token] == logits[token]:
        logits[token] = np.float32({self._call(self._processor.function)})"""
        )
