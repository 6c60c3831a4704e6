"""Checks a model on a GPU against llama.cpp's recorded output, and measures it.

    HIP_PLATFORM=nvidia python -m benchmarks.gpu_check MODEL.gguf --oracle smollm2

Three answers are compared with tests/data/models/oracle: the first token's top_logprobs, tokens
forced one by one through decode, and the same tokens in one prefill. Where the recorded lead of a
token over the runner-up is smaller than NEAR_TIE, 8-bit activations may choose the runner-up.
Exit status 1 if the model is wrong. Without `--oracle` it only measures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.backend.step import StepInput
from rocmforge.backend.windows import with_windows
from rocmforge.checkpoint.cache_types import CACHE_TYPES, KvDtype
from rocmforge.choices import ActivationBits, DecodeVariant, Switch
from rocmforge_hip.backend import create
from tests.backend.driving import Chunk, Driver, Want, make_step, with_states
from tests.support.models.loading import load_file

ORACLE = Path(__file__).parents[1] / "tests/data/models/oracle"
CHUNK = 2048
"""Tokens of a step of a long prompt."""
NEAR_TIE = 0.5  # nats
LOGPROB_TOLERANCE = 0.5  # nats, of the recorded top_logprobs


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--oracle", help="name of a file of tests/data/models/oracle")
    parser.add_argument("--batches", default="1,8,16,64", help="batch sizes to measure")
    parser.add_argument("--depths", default="128,4096", help="of contexts, to measure decode at")
    parser.add_argument("--context", type=int, default=4608)
    parser.add_argument("--steps", type=int, default=64, help="decode steps of a measurement")
    parser.add_argument("--long", type=int, default=0, help="tokens of a prompt taken in chunks")
    parser.add_argument("--activation-bits", choices=get_args(ActivationBits), default="auto")
    parser.add_argument("--kv-dtype", choices=("auto", *CACHE_TYPES), default="auto")
    parser.add_argument(
        "--decode-variant",
        choices=get_args(DecodeVariant),
        default="auto",
    )
    parser.add_argument("--graphs", choices=get_args(Switch), default="auto")
    parser.add_argument(
        "--keep-windows", action="store_true", help="keep what windows have left behind"
    )
    options = parser.parse_args()
    batches = [int(size) for size in options.batches.split(",")]
    depths = [int(depth) for depth in options.depths.split(",")]
    started = time.perf_counter()
    loaded = load_runner(
        options.model,
        max(batches),
        max(options.context, options.long),
        activation_bits=options.activation_bits,
        kv_dtype=options.kv_dtype,
        decode_variant=options.decode_variant,
        graphs=options.graphs,
        releases_windows=not options.keep_windows,
    )
    with closing(loaded) as runner:
        info = runner.info
        seconds = time.perf_counter() - started
        rate = info.weights_bytes / seconds / 1e9
        print(f"{info.device.name} ({info.device.target}), {info.num_blocks} blocks")
        print(f"load: {seconds:.2f} s, {rate:.2f} GB/s of weights")
        print(next(note for note in info.notes if note.startswith("decode steps")))
        is_right = _check(Driver(runner), options.oracle) if options.oracle else True
        measure(runner, batches, depths, options.steps)
        if options.long:
            measure_long(runner, options.long)
    return 0 if is_right else 1


def load_runner(
    model: Path,
    sequences: int,
    context: int,
    devices: int = 1,
    activation_bits: ActivationBits = "auto",
    kv_dtype: Literal["auto", KvDtype] = "auto",
    decode_variant: DecodeVariant = "auto",
    graphs: Switch = "auto",
    *,
    releases_windows: bool = False,
) -> Runner:
    """Loads the model, for so many sequences at once."""
    options = LoadOptions(
        device=None,
        max_context=context,
        max_sequences=max(sequences, 16),
        max_batched_tokens=4096,
        kv_blocks=None,
        kv_dtype=kv_dtype,
        activation_bits=activation_bits,
        decode_variant=decode_variant,
        graphs=graphs,
        releases_windows=releases_windows,
        memory_utilization=0.8,
        tensor_parallel=devices,
    )
    return load_file(create(), model, options)


def _check(driver: Driver, name: str) -> bool:
    data = json.loads((ORACLE / f"{name}.json").read_text())
    results = [
        _check_continuation(driver, which, expected)
        for which, expected in data["continuations"].items()
    ]
    return all(results)


def _check_continuation(driver: Driver, name: str, expected: dict[str, Any]) -> bool:
    prompt, ids, gaps = expected["prompt_ids"], expected["ids"], expected["gaps"]
    blocks = range(-(-(len(prompt) + len(ids)) // driver.runner.info.block_size))
    first = driver.run(Chunk(tokens=prompt, blocks=blocks, wants=[Want(num_logprobs=20)]))
    assert first.top_ids is not None
    assert first.top_logprobs is not None
    found = dict(zip(first.top_ids[0].tolist(), first.top_logprobs[0].tolist(), strict=True))
    worst = max(abs(found.get(token, -99.0) - value) for token, value in expected["top10"])

    decoded = [int(first.token_ids[0])]
    for index, token in enumerate(ids[:-1]):
        chunk = Chunk(tokens=[token], start=len(prompt) + index, blocks=blocks)
        decoded.append(int(driver.run(chunk).token_ids[0]))
    wants = [Want(token=len(prompt) - 1 + index) for index in range(len(ids))]
    prefilled = driver.run(Chunk(tokens=[*prompt, *ids[:-1]], blocks=blocks, wants=wants))

    wrong = _wrong(decoded, ids, gaps) + _wrong(prefilled.token_ids.tolist(), ids, gaps)
    agree = [np.mean(np.equal(got, ids)) for got in (decoded, prefilled.token_ids)]
    is_right = not wrong and worst < LOGPROB_TOLERANCE
    print(
        f"{name}: {len(prompt)}+{len(ids)} tokens, top-1 {agree[0]:.1%} decoded, "
        f"{agree[1]:.1%} prefilled, worst of top 10 {worst:.3f} nats, "
        f"{'ok' if is_right else f'WRONG at {wrong}'}"
    )
    return is_right


def _wrong(got: Sequence[int], ids: Sequence[int], gaps: Sequence[float]) -> list[int]:
    """Places where another token than the recorded one came out, and it was no near tie."""
    return [
        index
        for index, (token, wanted, gap) in enumerate(zip(got, ids, gaps, strict=True))
        if token != wanted and gap >= NEAR_TIE
    ]


def measure(runner: Runner, batches: Iterable[int], depths: Iterable[int], steps: int) -> None:
    """Prints how fast prompts and batches are."""
    info = runner.info
    step_id = 1_000_000
    per_sequence = info.num_blocks // (1 + info.window_groups) // max(batches)
    for length in (512, 2048, 4096):
        if length > info.max_context:
            continue
        blocks = range(-(-length // info.block_size))
        chunk = Chunk(tokens=_different(length), blocks=blocks)
        times = []
        for _ in range(3):
            runner.submit(_step(runner, step_id, [chunk]))
            times.append(runner.collect().device_ns / 1e9)
            step_id += 1
        print(f"prefill {length}: {length / min(times):,.0f} tokens/s")
    for depth in depths:
        for batch in batches:
            step_id = _measure_decode(runner, batch, depth, steps, per_sequence, step_id)


def measure_long(runner: Runner, length: int) -> None:
    """Prints how fast a prompt is computed in chunks, the better of two times."""
    blocks, ids = range(-(-length // runner.info.block_size)), _different(length)
    runs = []
    for first_step in (2_000_000, 3_000_000):
        milliseconds = []
        for start in range(0, length, CHUNK):
            chunk = Chunk(tokens=ids[start : start + CHUNK], start=start, blocks=blocks)
            runner.submit(_step(runner, first_step + start, [chunk]))
            milliseconds.append(runner.collect().device_ns / 1e6)
        runs.append(milliseconds)
    best = min(runs, key=sum)
    print(
        f"prefill {length} in chunks of {CHUNK}: {length / sum(best) * 1e3:,.0f} tokens/s, "
        f"the first in {best[0]:.1f} ms, the last in {best[-1]:.1f} ms"
    )


def _step(runner: Runner, step_id: int, chunks: Sequence[Chunk]) -> StepInput:
    step = with_windows(make_step(step_id, chunks, runner.info.block_size), runner.info)
    return with_states(step, chunks) if runner.info.state_slots else step


def _different(count: int) -> list[int]:
    """Returns tokens that differ: those of a model with experts go to different ones."""
    return [7 + 31 * index % 997 for index in range(count)]


def _measure_decode(
    runner: Runner, batch: int, depth: int, steps: int, per_sequence: int, step_id: int
) -> int:
    """Decode steps with two in flight, as the engine runs them."""
    info = runner.info
    if depth + steps > min(per_sequence * info.block_size, info.max_context):
        return step_id
    if info.state_slots:  # what a slot held before may be no number
        first = [
            Chunk(tokens=[1], blocks=[row * per_sequence], state_slot=row) for row in range(batch)
        ]
        runner.submit(_step(runner, step_id, first))
        runner.collect()
    # Made before they are timed: the engine makes a step while the one before runs, in less time
    # than lists of Python become arrays here.
    made = []
    for index in range(steps + 8):
        num_blocks = -(-(depth + index + 1) // info.block_size)
        chunks = [
            Chunk(
                tokens=[token],
                start=depth + index,
                blocks=range(row * per_sequence, row * per_sequence + num_blocks),
                sources=[row] if index else None,
                state_slot=row,
            )
            for row, token in enumerate(_different(batch))
        ]
        made.append(_step(runner, step_id, chunks))
        step_id += 1
    device_ns, started = [], 0.0
    for index, step in enumerate(made):
        if index == 8:
            started = time.perf_counter()
        runner.submit(step)
        if index:
            device_ns.append(runner.collect().device_ns)
    wall = time.perf_counter() - started
    device_ns.append(runner.collect().device_ns)
    device = float(np.median(device_ns[8:])) / 1e9
    print(
        f"decode batch {batch} at {depth}: {batch / device:,.0f} tokens/s on the device, "
        f"{batch * steps / wall:,.0f} with the host, step {device * 1e3:.3f} ms"
    )
    return step_id


if __name__ == "__main__":
    raise SystemExit(main())
