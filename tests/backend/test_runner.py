"""What a runner does with a step does not depend on what else is in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import Backend, Runner
from rocmforge.errors import ConfigurationError, OutOfMemory
from tests.backend.conftest import DEFAULTS, Load
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.models.loading import load_file

# GQA with a group of three, windows with softcaps, one KV head with two rope tables, experts.
VARIED = ("llama", "gemma2", "gemma3", "phi3", "qwen3moe", "gpt-oss")
ROWS = tuple(range(len(PROMPT)))


def in_chunks(driver: Driver, sizes: list[int], blocks: list[int]) -> Float32Array:
    """Log-probabilities after every token of the prompt, computed in pieces of these sizes."""
    pieces, start = [], 0
    for size in sizes:
        tokens = PROMPT[start : start + size]
        chunk = Chunk(tokens=tokens, start=start, blocks=blocks)
        pieces.append(driver.logprobs(chunk, range(len(tokens))))
        start += size
    assert start == len(PROMPT)
    return np.concatenate(pieces)


@pytest.mark.parametrize("model", VARIED)
@pytest.mark.parametrize(
    "sizes", [[16, 16, 8], [39, 1], [1] * 40, [7, 13, 20]], ids=["blocks", "tail", "ones", "odd"]
)
def test_prefill_in_chunks_equals_one_shot_to_the_bit(
    model: str, sizes: list[int], load: Load
) -> None:
    driver = load(model)
    whole = in_chunks(driver, [len(PROMPT)], [0, 1, 2])
    np.testing.assert_array_equal(in_chunks(driver, sizes, [5, 6, 7]), whole)


@pytest.mark.parametrize("model", VARIED)
def test_where_blocks_lie_does_not_change_a_bit(model: str, load: Load) -> None:
    driver = load(model)
    orderly = in_chunks(driver, [40], [0, 1, 2])
    np.testing.assert_array_equal(in_chunks(driver, [40], [63, 7, 31]), orderly)


def test_what_an_earlier_owner_left_in_a_block_does_not_matter(load: Load) -> None:
    driver = load("llama")
    fresh = in_chunks(driver, [20, 20], [0, 1, 2])
    driver.run(Chunk(tokens=[90] * 48, blocks=[2, 0, 1]))
    np.testing.assert_array_equal(in_chunks(driver, [20, 20], [0, 1, 2]), fresh)


@pytest.mark.parametrize("model", VARIED)
def test_a_mixed_batch_gives_every_sequence_what_it_gets_alone(model: str, load: Load) -> None:
    driver = load(model)
    prompts = [PROMPT[i : i + 5 + 6 * i] for i in range(5)]
    alone = [driver.greedy(prompt, [0, 1, 2], 6) for prompt in prompts]
    # Sequence i starts i steps late, so every step mixes a prefill with decodes.
    together: list[list[int]] = [[] for _ in range(5)]
    for step in range(10):
        chunks, active = [], []
        for i in range(5):
            prompt, made, blocks = prompts[i], together[i], [20 + i, 40 + i, 30 + i]
            if step < i or len(made) == 6:
                continue
            active.append(i)
            if not made:
                chunks.append(Chunk(tokens=prompt, blocks=blocks))
            else:
                start = len(prompt) + len(made) - 1
                chunks.append(Chunk(tokens=made[-1:], start=start, blocks=blocks))
        output = driver.run(*chunks)
        for i, token in zip(active, output.token_ids.tolist(), strict=True):
            together[i].append(token)
    assert together == alone


def test_a_shared_prefix_serves_two_sequences(load: Load) -> None:
    driver = load("llama")
    prefix, left, right = PROMPT[:32], [5, 6, 7], [8, 9]
    alone = [driver.greedy([*prefix, *tail], [0, 1, 2], 3) for tail in (left, right)]
    driver.run(Chunk(tokens=prefix, blocks=[10, 11], wants=()))
    output = driver.run(
        Chunk(tokens=left, start=32, blocks=[10, 11, 12]),
        Chunk(tokens=right, start=32, blocks=[10, 11, 13]),
    )
    assert output.token_ids.tolist() == [tokens[0] for tokens in alone]


@pytest.mark.parametrize("model", VARIED)
def test_a_prefix_is_shared_in_the_very_step_that_computes_it(model: str, load: Load) -> None:
    driver = load(model)
    prefix, left, right = PROMPT[:32], [5, 6, 7], [8, 9]
    alone = [driver.greedy([*prefix, *tail], [0, 1, 2], 1) for tail in (left, right)]
    output = driver.run(
        Chunk(tokens=right, start=32, blocks=[10, 11, 13]),
        Chunk(tokens=[*prefix, *left], blocks=[10, 11, 12]),
    )
    assert output.token_ids.tolist() == [alone[1][0], alone[0][0]]


def test_a_token_of_the_previous_step_can_be_the_input_of_the_next(load: Load) -> None:
    driver = load("qwen2")
    expected = [driver.greedy(PROMPT[:9], [0], 3), driver.greedy(PROMPT[:12], [1], 3)]
    first = driver.run(Chunk(tokens=PROMPT[:9], blocks=[2]), Chunk(tokens=PROMPT[:12], blocks=[3]))
    # The rows are named in the other order, so a runner that ignores them is found out.
    second = driver.run(
        Chunk(tokens=(), sources=[1], start=12, blocks=[3]),
        Chunk(tokens=(), sources=[0], start=9, blocks=[2]),
    )
    third = driver.run(
        Chunk(tokens=(), sources=[1], start=10, blocks=[2]),
        Chunk(tokens=(), sources=[0], start=13, blocks=[3]),
    )
    rows = zip(first.token_ids, second.token_ids[::-1], third.token_ids, strict=True)
    assert [[int(token) for token in row] for row in rows] == expected


def test_a_step_may_want_no_logits(load: Load) -> None:
    output = load("llama").run(Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=()))
    assert output.token_ids.shape == (0,)
    assert output.logprobs is None
    assert output.top_ids is None
    assert output.top_logprobs is None


def test_logprobs_are_reported_only_where_asked(load: Load) -> None:
    driver = load("llama")
    wants = [Want(), Want(num_logprobs=0), Want(num_logprobs=4), Want(target=5, num_logprobs=2)]
    output = driver.run(Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=wants))
    every = driver.logprobs(Chunk(tokens=PROMPT, blocks=[0, 1, 2]), [-1])[0]
    assert output.logprobs is not None
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    best = np.argsort(-every, kind="stable")[:4]
    assert output.token_ids.tolist() == [best[0]] * 3 + [5]
    np.testing.assert_allclose(output.logprobs[1:], [every[best[0]]] * 2 + [every[5]], rtol=1e-6)
    assert output.top_ids[2].tolist() == best.tolist()
    assert output.top_ids[3, :2].tolist() == best[:2].tolist()
    np.testing.assert_allclose(output.top_logprobs[2], every[best], rtol=1e-6)


def test_every_step_reports_its_number_and_the_time_it_took(load: Load) -> None:
    driver = load("llama")
    outputs = [driver.run(Chunk(tokens=PROMPT[:4], blocks=[0])) for _ in range(3)]
    assert [output.step_id for output in outputs] == [0, 1, 2]
    assert all(output.device_ns > 0 for output in outputs)


def test_the_info_states_what_was_loaded(load: Load) -> None:
    info = load("gemma3", kv_blocks=9, max_context=64).runner.info
    assert (info.num_blocks, info.max_context, info.vocab_size) == (9, 64, 97)
    # Seven layers of one KV head of 14 elements, keys and values.
    elements = 9 * info.block_size * 7 * 14 * 2
    assert info.kv_bytes % elements == 0
    assert info.weights_bytes > 0


def test_max_context_is_at_most_the_models(load: Load) -> None:
    assert load("llama", max_context=10_000).runner.info.max_context == 128


def test_blocks_are_planned_for_at_least_one_full_sequence(load: Load) -> None:
    info = load("llama", kv_blocks=None).runner.info
    assert info.num_blocks * info.block_size >= info.max_context


def test_a_cache_beyond_all_memory_is_refused_with_sizes(load: Load) -> None:
    with pytest.raises(OutOfMemory, match=r"[\d,]+ MiB"):
        load("llama", kv_blocks=1 << 40)


def test_an_unknown_device_is_refused_by_name(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="toaster"):
        load("llama", device="toaster")


def test_there_is_one_processor_to_run_on(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="tensor_parallel at 1, not 2"):
        load("llama", tensor_parallel=2)


def test_activations_are_never_rounded(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="activation_bits at auto, not 8"):
        load("llama", activation_bits="8")


def test_close_can_be_called_twice(load: Load) -> None:
    runner: Runner = load("llama").runner
    runner.close()
    runner.close()


def test_loading_reports_growing_shares(backend: Backend, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    runner = load_file(
        backend,
        write_model(by_name("llama"), tmp_path),
        DEFAULTS,
        lambda stage, share: seen.append((stage, share)),
    )
    runner.close()
    shares = [share for stage, share in seen if stage == seen[-1][0]]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
