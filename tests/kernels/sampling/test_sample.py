"""rf_sample_*: the chain of kernels against the reference, which defines tokens to the bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.backend.step import SamplingBatch
from rocmforge_reference.sampling import NO_TOKEN, gumbel_noise, sample
from tests.backend.driving import Want, make_sampling
from tests.support.launches.kernels import Device

BEST = np.dtype([("score", np.float32), ("token", np.int32)])
THREADS = 128

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]


class Chain:
    """The kernels' buffers for one batch, and the launches in their order."""

    def __init__(self, device: Device, logits: Logits, batch: SamplingBatch, parts: int) -> None:
        self.rows, self.vocab = logits.shape
        self.parts = parts
        self._device = device
        self._batch = batch
        self.logits = device.upload(logits, "logits")
        self.scores = self.logits
        self.highest = device.empty((self.rows, parts), BEST, "highest")
        self.drawn = device.empty((self.rows, parts), BEST, "drawn")
        self.arrived = device.upload(np.zeros(self.rows, np.uint32), "arrived")
        self.target = device.upload(batch.target_ids, "target")
        self.tokens = device.empty(self.rows, np.int32, "tokens")
        self.temperature = device.upload(batch.temperature, "temperature")
        self.limits = None if self._unfiltered() else device.empty(self.rows, np.uint32, "limits")

    def _unfiltered(self) -> bool:
        batch = self._batch
        return not (batch.top_k.any() or batch.min_p.any() or (batch.top_p < 1).any())

    def adjust(self, pending: Tokens | None) -> None:
        """Penalties and bias; a pending token stands in the previous step's output, reversed."""
        batch, upload = self._batch, self._device.upload
        self.scores = self._device.empty(self.logits.shape, np.float32, "scores")
        source = np.full(self.rows, -1, np.int32)
        previous = np.zeros(self.rows, np.int32)
        if pending is not None:
            previous = np.ascontiguousarray(pending[::-1])
            rows = np.arange(self.rows, dtype=np.int32)
            source = np.where(pending == NO_TOKEN, -1, rows[::-1]).astype(np.int32)
        self._device.launch(
            "rf_sample_adjust",
            *(self.logits, self.scores, upload(batch.repetition_penalty)),
            *(upload(batch.presence_penalty), upload(batch.frequency_penalty)),
            *(upload(x) for x in (batch.seen_offsets, batch.seen_tokens, batch.seen_counts)),
            *(upload(x) for x in (batch.bias_offsets, batch.bias_tokens, batch.bias_values)),
            *(upload(source), upload(previous), self.vocab),
            grid=(self.parts, self.rows),
            block=THREADS,
        )

    def find_max(self) -> None:
        tokens = None if self._batch.temperature.any() else self.tokens
        self._device.launch(
            "rf_sample_max",
            *(self.scores, self.highest, self.arrived, self.target, tokens, self.vocab),
            grid=(self.parts, self.rows),
            block=THREADS,
        )

    def filter(self, threads: int) -> None:
        assert self.limits is not None
        batch, upload = self._batch, self._device.upload
        with np.errstate(divide="ignore"):
            log_min_p = np.log(batch.min_p)
        self._device.launch(
            "rf_sample_filter",
            *(self.scores, self.highest, self.temperature, upload(log_min_p)),
            *(upload(batch.top_k), upload(batch.top_p), self.limits, self.vocab, self.parts),
            grid=self.rows,
            block=threads,
        )

    def draw(self) -> None:
        self._device.launch(
            "rf_sample_draw",
            *(self.scores, self.highest, self.temperature, self.limits),
            *(self._device.upload(self._batch.seed), self._device.upload(self._batch.position)),
            *(self.drawn, self.arrived, self.target, self.tokens, self.vocab),
            grid=(self.parts, self.rows),
            block=THREADS,
        )


def run(
    device: Device,
    logits: Logits,
    wants: Sequence[Want],
    *,
    parts: int = 3,
    pending: Tokens | None = None,
    filter_threads: int = 192,
) -> Tokens:
    """Launches what a backend would for these rows."""
    batch = make_sampling(wants)
    chain = Chain(device, logits, batch, parts)
    if len(batch.seen_tokens) or len(batch.bias_tokens) or pending is not None:
        chain.adjust(pending)
    chain.find_max()
    if batch.temperature.any():
        if chain.limits is not None:
            chain.filter(filter_threads)
        chain.draw()
    assert not chain.arrived.get().any()
    return chain.tokens.get()


def assert_as_reference(
    device: Device,
    logits: Logits,
    wants: Sequence[Want],
    *,
    parts: int = 3,
    pending: Tokens | None = None,
    filter_threads: int = 192,
) -> None:
    actual = run(device, logits, wants, parts=parts, pending=pending, filter_threads=filter_threads)
    none = np.full(len(wants), NO_TOKEN, np.int32)
    expected = sample(logits.copy(), make_sampling(wants), none if pending is None else pending)
    assert actual.tolist() == expected.token_ids.tolist()


def random_logits(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> Logits:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)


# vocabulary, parts
SHAPES = {
    "one_part": (64, 1),
    "fewer_tokens_than_a_wave": (20, 1),
    "ragged_tail_unaligned_rows": (1003, 3),
    "parts_without_tokens": (33, 12),
    "many_steps_of_a_block": (3000, 2),
    "one_token": (1, 1),
}


@pytest.mark.parametrize(("vocab", "parts"), SHAPES.values(), ids=SHAPES.keys())
def test_greedy_and_drawn_rows(device: Device, vocab: int, parts: int) -> None:
    wants = [Want(), Want(temperature=1.0, seed=1), Want(temperature=0.3, seed=2**63 + 5)]
    assert_as_reference(device, random_logits(3, vocab), wants, parts=parts)


def test_the_noise_has_the_bits_of_its_definition(device: Device) -> None:
    """One allowed token in four: the drawn score of a part is the noise of that token."""
    vocab, seed, position = 256, 0x0123456789ABCDEF, 77
    noise = np.empty(vocab, np.float32)
    wants = [Want(temperature=1.0, seed=seed, position=position)] * 4
    logits = np.full((4, vocab), -np.inf, np.float32)
    for row in range(4):
        logits[row, row::4] = 0.0
    chain = Chain(device, logits, make_sampling(wants), parts=vocab // 4)
    chain.find_max()
    chain.draw()
    drawn = chain.drawn.get()
    for row in range(4):
        noise[row::4] = drawn["score"][row]
    np.testing.assert_array_equal(noise, gumbel_noise(seed, position, vocab))


def test_equal_logits_are_told_apart_by_noise_alone(device: Device) -> None:
    wants = [Want(temperature=1.0, seed=seed, position=seed % 3) for seed in range(16)]
    assert_as_reference(device, np.ones((16, 200), np.float32), wants)


def test_greedy_takes_the_smallest_id_among_equals(device: Device) -> None:
    logits = np.zeros((2, 500), np.float32)
    logits[0, [17, 18, 400]] = 5.0
    assert run(device, logits, [Want(), Want()]).tolist() == [17, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize(
    "want",
    [Want(), Want(temperature=1.0, top_k=5), Want(target=3)],
    ids=["greedy", "drawn", "target"],
)
def test_a_bad_row_gives_no_token_and_leaves_others_alone(
    device: Device, want: Want, bad: float
) -> None:
    logits = random_logits(3, 300)
    logits[1, 123] = bad
    assert_as_reference(device, logits, [want] * 3)


def test_nothing_allowed_gives_no_token(device: Device) -> None:
    logits = np.full((2, 70), -np.inf, np.float32)
    assert_as_reference(device, logits, [Want(), Want(temperature=1.0, top_p=0.5)])


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "drawn"])
def test_targets_are_scored(device: Device, temperature: float) -> None:
    wants = [Want(), Want(target=5), Want(target=0, temperature=temperature), Want()]
    assert_as_reference(device, random_logits(4, 64), wants)


FILTERS = {
    "top_k": dict(top_k=10),
    "top_k_of_one": dict(top_k=1),
    "top_k_of_all_but_one": dict(top_k=2999),
    "top_k_beyond_the_vocabulary": dict(top_k=4000),
    "top_p": dict(top_p=0.8),
    "tiny_top_p": dict(top_p=1e-6),
    "almost_all_top_p": dict(top_p=0.9999),
    "min_p": dict(min_p=0.05),
    "min_p_of_one": dict(min_p=1.0),
    "top_k_then_top_p": dict(top_k=50, top_p=0.7),
    "all_three": dict(top_k=200, top_p=0.9, min_p=0.01),
}


# Numbers that float32 has as 0, or hardly has.
TINY = {
    "top_p_of_zero": dict(top_p=1e-300),
    "smallest_top_p": dict(top_p=1e-45),
    "min_p_of_zero": dict(min_p=1e-300),
    "smallest_min_p": dict(min_p=1e-45),
}


@pytest.mark.parametrize("spread", [1.0, 6.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("filters", (FILTERS | TINY).values(), ids=(FILTERS | TINY).keys())
def test_filters(device: Device, filters: dict[str, float], spread: float) -> None:
    wants = [
        Want(temperature=temperature, seed=seed, **filters)  # type: ignore[arg-type]
        for seed, temperature in enumerate((1.0, 0.5, 2.0, 0.01))
    ]
    assert_as_reference(device, random_logits(4, 3000, spread), wants)


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
def test_limits_let_the_right_tokens_pass(device: Device, filters: dict[str, float]) -> None:
    """What the filter keeps, token by token, not only what one draw takes."""
    logits = random_logits(1, 3000, spread=2.0)
    batch = make_sampling([Want(temperature=0.7, **filters)])  # type: ignore[arg-type]
    chain = Chain(device, logits, batch, parts=2)
    chain.find_max()
    chain.filter(threads=256)
    assert chain.limits is not None
    scaled = (logits[0] - logits[0].max()) / batch.temperature[0]
    keys = np.abs(scaled).view(np.uint32)
    kept = keys <= chain.limits.get()[0]

    order = np.argsort(-scaled.astype(np.float64), kind="stable")
    probability = np.exp(scaled[order].astype(np.float64))
    allowed = np.arange(len(order)) < (filters.get("top_k") or len(order))
    allowed &= probability >= filters.get("min_p", 0.0)
    probability = np.where(allowed, probability, 0) / probability[allowed].sum()
    if "top_p" in filters:
        allowed &= np.cumsum(probability) - probability < np.float32(filters["top_p"])
    assert np.flatnonzero(kept).tolist() == np.sort(order[allowed]).tolist()


def test_more_tokens_of_one_step_of_the_first_digit_than_the_list_holds(device: Device) -> None:
    """Thousands of logits within 1/32 octave: the filter has to look at the bits of keys."""
    logits = np.random.default_rng(3).uniform(0, 0.01, (2, 6000)).astype(np.float32)
    logits[:, 77] = 1.0
    wants = [Want(temperature=1.0, top_k=3000, seed=5), Want(temperature=1.0, top_p=0.5, seed=6)]
    assert_as_reference(device, logits, wants, filter_threads=1024)


def test_ties_at_the_border_all_stay(device: Device) -> None:
    logits = np.repeat(np.arange(4, dtype=np.float32), 50)[None].repeat(16, axis=0)
    filters = [{"top_k": 3}, {"top_k": 60}, {"top_p": 0.1}, {"top_p": 0.7}]
    wants = [
        Want(temperature=1.0, seed=seed, **filters[seed % 4])  # type: ignore[arg-type]
        for seed in range(16)
    ]
    assert_as_reference(device, logits, wants)


def test_a_tiny_temperature_leaves_the_largest(device: Device) -> None:
    wants = [Want(temperature=1e-30, seed=1, top_k=20), Want(temperature=1e-6, seed=1, top_p=0.9)]
    wants += [Want(temperature=1e-45, seed=1, top_p=0.9), Want(temperature=1e-300, seed=1)]
    assert_as_reference(device, random_logits(4, 400), wants)


PENALTIES = [
    Want(),
    Want(repetition_penalty=1.5, seen={3: 0, 7: 2, 99: 1}),
    Want(presence_penalty=2.0, seen={3: 0, 7: 2}),
    Want(frequency_penalty=0.7, seen={50: 3, 99: 1, 0: 0}),
    Want(repetition_penalty=0.5, presence_penalty=-1.0, frequency_penalty=0.3, seen={9: 4}),
    Want(bias={3: 100.0, 4: -np.inf}),
    Want(temperature=1.0, bias={4: -np.inf, 60: 5.0}, repetition_penalty=1.2, seen={60: 1}),
    Want(repetition_penalty=3.0),
]


def test_penalties_and_bias(device: Device) -> None:
    logits = random_logits(len(PENALTIES), 100)
    assert_as_reference(device, logits, PENALTIES)
    batch = make_sampling(PENALTIES)
    chain = Chain(device, logits, batch, parts=2)
    chain.adjust(None)
    expected = logits.copy()
    for row, want in enumerate(PENALTIES):
        for token, count in want.seen.items():
            value = np.float64(expected[row, token])
            scale = want.repetition_penalty
            value = value / scale if value > 0 else value * scale
            if count:
                value -= want.presence_penalty + want.frequency_penalty * count
            expected[row, token] = value
        for token, bias in want.bias.items():
            expected[row, token] += np.float32(bias)
    np.testing.assert_allclose(chain.scores.get(), expected, rtol=1e-6)


def test_the_pending_token_counts_as_seen(device: Device) -> None:
    wants = [
        Want(frequency_penalty=50.0, seen={10: 1, 20: 0}),
        Want(frequency_penalty=50.0, seen={10: 1, 20: 0}),
        Want(presence_penalty=50.0),
        Want(presence_penalty=50.0),
        Want(),  # nothing to penalise with
    ]
    pending = np.array([20, 30, 10, NO_TOKEN, 10], np.int32)
    logits = random_logits(5, 64, spread=0.1)
    logits[:, pending[0]] = 5.0
    logits[:, 10] = 6.0
    logits[:, 30] = 7.0
    assert_as_reference(device, logits, wants, pending=pending)


def test_masked_tokens_are_never_taken(device: Device) -> None:
    vocab = 70  # the mask's last word is not full
    logits = random_logits(3, vocab)
    wants = [Want(), Want(temperature=1.0, seed=4), Want(temperature=1.0, top_k=5, seed=9)]
    allowed = np.random.default_rng(2).random((3, vocab)) < 0.2
    bits = np.zeros((3, 96), np.bool_)
    bits[:, :vocab] = allowed
    words = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    scores = device.upload(logits, "scores")
    args = (scores, device.upload(words), vocab)
    device.launch("rf_sample_mask", *args, grid=(2, 3), block=THREADS)
    expected = np.where(allowed, logits, -np.inf).astype(np.float32)
    np.testing.assert_array_equal(scores.get(), expected)
    assert_as_reference(device, scores.get(), wants)


def test_a_row_does_not_depend_on_its_batch_or_parts(device: Device) -> None:
    logits = random_logits(5, 900)
    wants = [Want(temperature=0.8, seed=seed, top_k=40, top_p=0.9) for seed in range(5)]
    together = run(device, logits, wants, parts=7).tolist()
    alone = [int(run(device, logits[i : i + 1], wants[i : i + 1], parts=2)[0]) for i in range(5)]
    assert together == alone
