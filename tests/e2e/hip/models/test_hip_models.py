"""Whole models on the HIP backend against the reference backend.

On the host platform, which is the default, every kernel runs under the checking library; with
`--platform nvidia` or `--platform rocm` the same tests run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.backend.step import StepOutput
from rocmforge.checkpoint.file_reads import FileRead
from rocmforge.checkpoint.locator import FilePart
from rocmforge.engine.ipc.params import SamplingParams, TokenLogprob
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.errors import EngineError, ModelLoadError
from rocmforge_hip.backend import create as create_hip
from rocmforge_hip.device.memory import PinnedBuffer
from rocmforge_hip.ops import geometry
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.weights import upload
from rocmforge_reference import ops as reference_ops
from tests.backend.driving import Chunk, Driver, Want, make_step
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.core import make_core, reports
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import FLOAT_MODELS, fitting, quantized, write_quantized
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip, load_reference
from tests.support.operands.paged_cache import turned, unpack
from tests.support.operands.weights import ALL_TYPES

# Of log-probabilities, relative to the spread of the logits.
FLOAT_TOLERANCE = 0.03  # halves in the cache and in prefills
INT8_TOLERANCE = 0.08  # 8-bit activations too
MAX_TOKENS = 32
# Two begin alike for more than a block, and the cache has no room for four at full length.
PROMPTS = (PROMPT[:34], PROMPT[7:9], PROMPT[20:39], PROMPT[:3], PROMPT[:37])
TIGHT_BLOCKS = 6
CAPITAL_OF_FRANCE = (504, 3575, 282, 4649, 314)  # SmolLM2's tokens of "The capital of France is"
CONTINUATION = [7042, 30, 198, 198]  # llama.cpp's, in float32


@dataclass
class Generated:
    """What a request got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


def generate(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    *,
    num_logprobs: int = -1,
    max_tokens: int = MAX_TOKENS,
    options: LoadOptions = SMALL,
) -> list[Generated]:
    """Greedy continuations through the engine: mixed steps, two in flight where that is possible.

    The limits force prompts into chunks and make the last request wait for a free place.
    """
    results, _ = generate_and_count(
        runner, prompts, num_logprobs=num_logprobs, max_tokens=max_tokens, options=options
    )
    return results


def generate_and_count(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    *,
    num_logprobs: int = -1,
    max_tokens: int = MAX_TOKENS,
    prompt_lookup_tokens: int = 0,
    options: LoadOptions = SMALL,
) -> tuple[list[Generated], EngineStats]:
    """The same, with what the engine counted."""
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0,
        num_logprobs=num_logprobs,
        prompt_lookup_tokens=prompt_lookup_tokens,
    )
    results = [Generated() for _ in prompts]
    stats = EngineStats()
    core = make_core(runner, options)
    for report in reports(core, [(prompt, sampling) for prompt in prompts]):
        stats = report.stats
        for event in report.events:
            results[event.request_id].tokens.extend(event.token_ids)
            results[event.request_id].logprobs.extend(event.logprobs or ())
    return results, stats


def assert_same_until_a_near_tie(
    got: Sequence[Generated], expected: Sequence[Generated], near_tie: float
) -> None:
    """Tokens are equal up to where the reference itself was undecided, which must be late."""
    agreed = 0
    for ours, theirs in zip(got, expected, strict=True):
        assert len(ours.tokens) == len(theirs.tokens) == MAX_TOKENS
        for index, (token, wanted) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)):
            if token != wanted:
                (_, best), (_, second) = theirs.logprobs[index].top[:2]
                assert best - second < near_tie, f"token {index}: {token} instead of {wanted}"
                break
            agreed += 1
    assert agreed >= len(expected) * MAX_TOKENS // 2


def assert_logprobs_agree(ours: Driver, theirs: Driver, tolerance: float) -> None:
    """After several tokens in one step, and after one more, for the whole vocabulary."""
    blocks = [3, 1, 2, 4]
    for tokens, start in ((PROMPT[:20], 0), (PROMPT[20:21], 20), (PROMPT[21:24], 21)):
        chunk = Chunk(tokens=tokens, start=start, blocks=blocks)
        got, expected = (
            np.array([driver.logprobs(chunk, [len(tokens) - 1])]) for driver in (ours, theirs)
        )
        error = np.abs(got - expected).max() / expected.std()
        assert error < tolerance, f"{len(tokens)} tokens from {start}: {error:.4f}"


@pytest.mark.parametrize("name", FLOAT_MODELS)
def test_every_architecture_gives_the_references_tokens(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    """In chunks, in mixed batches, from shared blocks, and recomputed after preemption."""
    path = write_model(fitting(by_name(name)), tmp_path)
    runner = load_hip(stack, path, replace(SMALL, kv_blocks=TIGHT_BLOCKS))
    reference = load_reference(stack, path)
    assert_logprobs_agree(Driver(runner), Driver(reference), FLOAT_TOLERANCE)
    expected = generate(reference, PROMPTS, num_logprobs=2)
    got, stats = generate_and_count(runner, PROMPTS)
    assert stats.totals.preemptions > 0
    assert stats.totals.prefix_hit_tokens > 0
    assert_same_until_a_near_tie(got, expected, 4 * FLOAT_TOLERANCE)


@pytest.mark.parametrize(("bits", "tolerance"), [("8", INT8_TOLERANCE), ("16", FLOAT_TOLERANCE)])
@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_every_stored_type_gives_the_references_logits(
    type_name: str,
    bits: Literal["8", "16"],
    tolerance: float,
    stack: ExitStack,
    tmp_path: Path,
) -> None:
    model = quantized(by_name("llama"), type_name)
    path = write_quantized(model, type_name, tmp_path)
    reference = Driver(load_reference(stack, path))
    runner = load_hip(stack, path, replace(SMALL, activation_bits=bits))
    assert_logprobs_agree(Driver(runner), reference, tolerance)


def read_int8_cache(runner: HipRunner, layer: int, kind: str, block: int) -> list[Float32Array]:
    """Values [kv_heads, tokens, head_dim] of a block as the device sees them, and their steps."""
    cache = runner._model.ops.caches[layer]
    device, found = runner._device, []
    for name in (f"{kind}s", f"{kind}_scale"):
        array = getattr(cache, name)
        host = PinnedBuffer(device.driver, array.nbytes, "a cache")
        device.driver.copy_to_host(host.address, array.address, array.nbytes, device.stream)
        device.driver.synchronize_stream(device.stream)
        own = host.bytes.view(array.dtype).reshape(array.shape)[block]
        found.append((unpack(own) if own.dtype == np.uint32 else own).astype(np.float32))
        host.free()
    codes, steps = found
    return [codes * steps[..., None], steps[..., None]]


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [("llama", "int8"), ("gemma3", "int8"), ("gemma3", "k8v4")]
)
def test_a_rounded_cache_holds_the_nearest_values_and_is_read_as_it_is(
    name: str,
    kv_dtype: Literal["int8", "k8v4"],
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is stored is compared with the reference, which then goes on with what is stored.

    So the tolerance of an f16 cache is kept. Against a reference with a float32 cache it would have
    to allow for what rounding to 127 steps does to a random model, which is several times more; and
    if the reference rounded by itself, values in the middle between two steps would fall elsewhere.
    """
    path = write_model(fitting(by_name(name)), tmp_path)
    runner = load_hip(stack, path, replace(SMALL, kv_dtype=kv_dtype))
    ours, theirs = Driver(runner), Driver(load_reference(stack, path))
    real_store = reference_ops.store
    calls = count()
    start = 0

    def store_as_device(
        cache: Float32Array, values: Float32Array, slots: npt.NDArray[np.int64]
    ) -> None:
        layer, is_value = divmod(next(calls), 2)
        kind = "value" if is_value else "key"
        stored, step = read_int8_cache(runner, layer, kind, block=3)
        stored, step = (x[:, start : start + len(values)].swapaxes(0, 1) for x in (stored, step))
        is_packed = kv_dtype == "k8v4" and is_value
        wanted = turned(values) if is_packed else values
        allowed = step / 2 + FLOAT_TOLERANCE * np.abs(wanted).max(axis=-1, keepdims=True)
        assert (np.abs(stored - wanted) <= allowed).all(), f"{kind}s of layer {layer}"
        most = np.abs(stored).max(axis=-1, keepdims=True)
        np.testing.assert_allclose(step, most / (7 if is_packed else 127), 1e-5)
        real_store(cache, turned(stored).astype(np.float32) if is_packed else stored, slots)

    monkeypatch.setattr(reference_ops, "store", store_as_device)
    for tokens, start in ((PROMPT[:20], 0), (PROMPT[20:21], 20), (PROMPT[21:24], 21)):
        chunk = Chunk(tokens=tokens, start=start, blocks=[3, 1, 2, 4])
        got = ours.logprobs(chunk, [len(tokens) - 1])
        calls = count()
        expected = theirs.logprobs(chunk, [len(tokens) - 1])
        error = np.abs(got - expected).max() / expected.std()
        assert error < FLOAT_TOLERANCE, f"{len(tokens)} tokens from {start}: {error:.4f}"


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_begins_as_llama_cpp_does(stack: ExitStack, smollm2_path: Path) -> None:
    driver = Driver(load_hip(stack, smollm2_path))
    assert driver.greedy(CAPITAL_OF_FRANCE, [2, 1], len(CONTINUATION)) == CONTINUATION


@pytest.fixture
def tiny(stack: ExitStack, tmp_path: Path) -> HipRunner:
    """A tiny Llama."""
    return load_hip(stack, write_model(fitting(by_name("llama")), tmp_path))


def counted(runner: HipRunner) -> tuple[int, int, int, int]:
    """Copies to the device and back, allocations, and waits of the host, up to now."""
    driver = runner.driver
    return driver.copies_to_device, driver.copies_to_host, driver.allocations, driver.waits


def test_a_step_copies_results_waits_once_and_allocates_nothing(tiny: HipRunner) -> None:
    driver = Driver(tiny)
    for tokens, start in ((PROMPT[:20], 0), (PROMPT[20:21], 20), (PROMPT[21:22], 21)):
        before = counted(tiny)
        driver.run(Chunk(tokens=tokens, start=start, blocks=[1, 2]))
        assert tuple(np.subtract(counted(tiny), before)) == (0, 1, 0, 1)  # a kernel brings inputs


def test_so_do_all_steps_that_the_engine_makes(tiny: HipRunner) -> None:
    before = counted(tiny)
    _, stats = generate_and_count(tiny, PROMPTS)
    steps = stats.totals.steps
    assert steps > MAX_TOKENS
    # A step of a prompt's middle has no rows, so nothing comes back.
    up, down, allocations, waits = (int(n) for n in np.subtract(counted(tiny), before))
    assert (up, allocations, waits) == (0, 0, steps)
    assert steps - len(PROMPTS) <= down <= steps


def test_memory_does_not_grow_with_steps_and_is_given_back(
    stack: ExitStack, host: HostPlatform | None, tmp_path: Path
) -> None:
    if host is None:
        pytest.skip("only the host platform counts what is allocated")
    before = host.live_bytes
    with ExitStack() as inner:
        runner = load_hip(inner, write_model(fitting(by_name("llama")), tmp_path))
        loaded = host.live_bytes
        assert loaded > before
        driver = Driver(runner)
        for _ in range(20):
            driver.run(Chunk(tokens=PROMPT[:1], blocks=[1]))
        assert host.live_bytes == loaded
    assert host.live_bytes == before


def test_a_load_that_fails_halfway_gives_everything_back(
    host: HostPlatform | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host is None:
        pytest.skip("only the host platform counts what is allocated")
    path = write_model(fitting(by_name("llama")), tmp_path)
    shorter = tmp_path / "shorter"
    shorter.write_bytes(b"x")
    reads, start = count(), FileRead.start

    def start_elsewhere(read: FileRead, part: FilePart, address: int, nbytes: int) -> None:
        start(read, FilePart(shorter, 0) if next(reads) == 5 else part, address, nbytes)

    before = host.live_bytes
    monkeypatch.setattr(FileRead, "start", start_elsewhere)
    with pytest.raises(ModelLoadError, match="shorter became shorter"):
        load_file(create_hip(), path, SMALL)
    assert host.live_bytes == before
    assert host.take_finding() == ""


@pytest.mark.usefixtures("host")
def test_a_load_of_many_pieces_tells_of_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(upload, "_CHUNK_BYTES", 1)  # each row is a piece
    path, told = write_model(fitting(by_name("llama")), tmp_path), []
    load_file(create_hip(), path, SMALL, lambda *each: told.append(each)).close()
    shares = [share for stage, share in told if stage == "loading weights"]
    assert shares == sorted(set(shares))
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert 50 < len(shares) <= 102


def test_a_thousand_requests_leave_no_memory_behind(
    stack: ExitStack, host: HostPlatform | None, tmp_path: Path
) -> None:
    if host is None:
        pytest.skip("only the host platform counts what is allocated")
    options = replace(SMALL, max_sequences=64, max_batched_tokens=160, kv_blocks=64)
    runner = load_hip(stack, write_model(fitting(by_name("llama")), tmp_path), options)
    prompts = [PROMPT[: 1 + index % 3] for index in range(1000)]
    generate(runner, prompts[:200], max_tokens=2, options=options)  # makes the graphs
    before = host.live_bytes, runner.driver.allocations
    results = generate(runner, prompts, max_tokens=2, options=options)
    assert [len(result.tokens) for result in results] == [2] * 1000
    assert (host.live_bytes, runner.driver.allocations) == before


def test_padding_of_a_batch_changes_nothing(stack: ExitStack, tmp_path: Path) -> None:
    path = write_model(fitting(by_name("llama")), tmp_path)
    # With 8 bits the same kernels multiply two rows and four.
    driver = Driver(load_hip(stack, path, replace(SMALL, activation_bits="8")))
    for block in range(3):
        driver.run(Chunk(tokens=PROMPT[:20], blocks=[block]))

    def next_tokens(blocks: Sequence[int]) -> StepOutput:
        return driver.run(
            *(
                Chunk(tokens=[5], start=20, blocks=[block], wants=[Want(num_logprobs=0)])
                for block in blocks
            )
        )

    three, two = next_tokens([0, 1, 2]), next_tokens([0, 1])  # buckets of four and two
    assert three.logprobs is not None
    assert two.logprobs is not None
    np.testing.assert_allclose(three.logprobs[:2], two.logprobs, atol=1e-5)
    assert len(set(three.token_ids.tolist())) == 1


def test_a_token_may_come_from_the_step_before_without_the_host_knowing_it(
    tiny: HipRunner,
) -> None:
    expected = Driver(tiny).greedy(PROMPT[:20], [3, 4], 4)
    size = tiny.info.block_size
    tiny.submit(make_step(4, [Chunk(tokens=PROMPT[:20], blocks=[1, 2])], size))
    got = []
    for index in range(1, 4):
        chunk = Chunk(tokens=[0], start=19 + index, blocks=[1, 2], sources=[0])
        tiny.submit(make_step(4 + index, [chunk], size))
        got.append(int(tiny.collect().token_ids[0]))
    got.append(int(tiny.collect().token_ids[0]))
    assert got == expected


def test_sampling_settings_act_on_the_device(tiny: HipRunner) -> None:
    driver = Driver(tiny)
    best = int(driver.run(Chunk(tokens=PROMPT[:20], blocks=[0])).token_ids[0])
    wants = [
        Want(),
        Want(bias={best: -np.inf}),
        Want(temperature=1.0, top_k=1, seed=3),
        Want(temperature=5.0, seed=3, position=20),
        Want(temperature=5.0, seed=4, position=20),
        Want(target=11, num_logprobs=2),
    ]
    output = driver.run(Chunk(tokens=PROMPT[:20], blocks=[0], wants=wants))
    tokens = output.token_ids.tolist()
    assert tokens[0] == tokens[2] == best
    assert tokens[1] != best
    assert tokens[5] == 11
    assert output.logprobs is not None
    assert np.isfinite(output.logprobs).tolist() == [False] * 5 + [True]
    assert output.top_ids is not None
    assert output.top_ids[5, 0] == best


def test_draws_are_those_of_the_reference(stack: ExitStack, tmp_path: Path) -> None:
    path = write_model(fitting(by_name("llama")), tmp_path)
    runner, reference = load_hip(stack, path), load_reference(stack, path)
    settings: tuple[dict[str, Any], ...] = (
        {},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"repetition_penalty": 1.5, "seen": {5: 1, 11: 2}},
        {"frequency_penalty": 0.8, "presence_penalty": 0.4, "seen": dict.fromkeys(range(50), 2)},
        {"bias": {7: 2.0, 12: -np.inf}},
    )
    wants = [
        Want(temperature=1.5, seed=seed, position=20, **changes)
        for changes in settings
        for seed in range(30)
    ]
    chunk = Chunk(tokens=PROMPT[:20], blocks=[0, 1], wants=wants)
    got, expected = (Driver(each).run(chunk).token_ids for each in (runner, reference))
    # Halves in the cache move a logit by less than what the noise of two tokens is apart, mostly.
    assert (got == expected).mean() > 0.97
    assert len(set(expected.tolist())) > 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_acts_on_the_device_in_prefills_and_in_captured_decodes(
    tiny: HipRunner, temperature: float
) -> None:
    want = Want(temperature=temperature, seed=7)
    words = -(-tiny.info.vocab_size // 32)
    prefill = Chunk(tokens=PROMPT[:20], blocks=[0], wants=[want])
    decode = Chunk(tokens=PROMPT[20:21], start=20, blocks=[0], wants=[want])
    allowed = (3, 64, 96)  # in the first word, at the edge of one, in the last
    for step_id, token in enumerate(allowed):
        step = make_step(step_id, [decode if step_id else prefill], tiny.info.block_size)
        mask = np.zeros((1, words), np.uint32)
        mask[0, token // 32] = 1 << token % 32
        tiny.submit(replace(step, sampling=replace(step.sampling, allowed=mask)))
        assert tiny.collect().token_ids.tolist() == [token]


def test_draft_tokens_that_are_checked_together_give_the_references_tokens(
    stack: ExitStack, tmp_path: Path
) -> None:
    recipe = by_name("llama")
    few = replace(recipe, config=recipe.config | {"vocab_size": 16})  # so that it repeats itself
    path = write_model(fitting(few), tmp_path)
    prompts = [[token % 16 for token in prompt] for prompt in PROMPTS]
    expected = generate(load_reference(stack, path), prompts, num_logprobs=2)
    got, stats = generate_and_count(load_hip(stack, path), prompts, prompt_lookup_tokens=4)
    assert stats.totals.accepted_tokens > 0
    assert_same_until_a_near_tie(got, expected, 4 * FLOAT_TOLERANCE)


WHOLE_ROW = [Want(target=token, num_logprobs=0) for token in range(64)]


@pytest.mark.parametrize("kv_dtype", ["f16", "int8"])
def test_few_tokens_behind_a_long_context_are_split_among_blocks(
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kv_dtype: Literal["f16", "int8"],
) -> None:
    """Beside a decode and a shorter sequence, which leave some splits without keys."""
    monkeypatch.setattr(geometry, "_MIN_PREFILL_SPLIT", 64)
    path = write_model(fitting(by_name("llama")), tmp_path)
    options = replace(SMALL, max_batched_tokens=128, kv_dtype=kv_dtype)
    drivers = [Driver(load_hip(stack, path, options)), Driver(load_reference(stack, path))]
    long = [7 * index % 89 for index in range(128)]
    steps = (
        [Chunk(tokens=long[:100], blocks=range(8))],
        [Chunk(tokens=PROMPT[:21], blocks=[8, 9])],
        [
            Chunk(tokens=PROMPT[21:22], start=21, blocks=[8, 9], wants=WHOLE_ROW),
            Chunk(tokens=long[100:125], start=100, blocks=range(8), wants=WHOLE_ROW),
            Chunk(tokens=PROMPT[:5], blocks=[10], wants=WHOLE_ROW),
        ],
    )
    got, expected = ([driver.run(*step) for step in steps][-1].logprobs for driver in drivers)
    assert got is not None
    assert expected is not None
    tolerance = FLOAT_TOLERANCE if kv_dtype == "f16" else INT8_TOLERANCE
    assert np.abs(got - expected).max() < tolerance * expected.std()


def test_masks_may_come_while_a_step_runs(tiny: HipRunner) -> None:
    words = -(-tiny.info.vocab_size // 32)
    want = Want(temperature=1.0, seed=7)
    chunks = [
        Chunk(tokens=PROMPT[:20], blocks=[0], wants=[want]),
        # A decode, whose token is what the step before draws.
        Chunk(tokens=PROMPT[20:21], start=20, blocks=[0], wants=[want], sources=[0]),
        Chunk(tokens=PROMPT[21:22], start=21, blocks=[0], wants=[want], sources=[0]),
    ]
    drawn = []
    for step_id, (chunk, token) in enumerate(zip(chunks, (3, 64, 96), strict=True)):
        step = make_step(step_id, [chunk], tiny.info.block_size)
        room = np.full((1, words), 0xFFFFFFFF, np.uint32)
        late = replace(step.sampling, allowed=room, is_masked_later=True)
        tiny.submit(replace(step, sampling=late))
        if step_id:
            drawn += tiny.collect().token_ids.tolist()
        mask = np.zeros((1, words), np.uint32)
        mask[0, token // 32] = 1 << token % 32
        tiny.constrain(mask)
    drawn += tiny.collect().token_ids.tolist()
    assert drawn == [3, 64, 96]


def test_after_a_device_error_every_call_gives_it_and_close_works(
    tiny: HipRunner, host: HostPlatform | None
) -> None:
    if host is None:
        pytest.skip("a fault would end the process's use of a GPU")
    beyond = Chunk(tokens=PROMPT[:20], blocks=[tiny.info.num_blocks + 1000])
    tiny.submit(make_step(0, [beyond], tiny.info.block_size))
    with pytest.raises(EngineError) as first:
        tiny.collect()
    with pytest.raises(EngineError) as second:
        tiny.submit(make_step(1, [beyond], tiny.info.block_size))
    assert second.value is first.value
    tiny.close()
    assert "rf_rope_store" in host.take_finding()
