"""Checks of what has a state for each sequence: short convolutions, the delta rule, Mamba-2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.models.layer_config import DeltaConfig, MambaConfig
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, spec
from rocmforge_hip.device.records import mapped
from rocmforge_hip.device.recurrent import DeltaScratch, MambaScratch, RecurrentBatch
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.recurrent.joint_norm import JointNorm
from rocmforge_hip.ops.recurrent.kernels import DeltaRates, MambaRates, RecurrentKernels
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error
from rocmforge_hip.verify.rows import random_values
from rocmforge_hip.verify.workbench import Recipe, Workbench

_SUMS: Final = 2e-5  # relative to the largest value
_HALVES: Final = 1e-3  # the same, of products of halves
_EPS: Final = 1e-6
FEW_UNITS: Final = 1
"""Compute units that any number of blocks fills."""
_MANY_UNITS: Final = 1 << 20
_DELTA: Final = DeltaConfig(num_key_heads=2, num_value_heads=4, key_dim=128, value_dim=128)
_MAMBA: Final = MambaConfig(num_heads=4, head_dim=64, num_groups=2, state_size=128, norm_eps=_EPS)
_CHANNELS: Final = 288
_WIDTH: Final = 4

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Run = Callable[[slice, Float64], tuple[Float64, Float64]]
"""Rows of a sequence and its state make results and the next state."""


@dataclass(frozen=True, slots=True)
class SequenceCase:
    """The new tokens of one sequence, and where its states are."""

    tokens: int
    slot: int  # of the state before them
    is_fresh: bool
    writes: tuple[tuple[int, int], ...] = ()  # tokens and slots; none = the last one, in `slot`

    @property
    def kept(self) -> tuple[tuple[int, int], ...]:
        """Tokens after which the state is kept, and in which slot."""
        return self.writes or (((self.tokens - 1, self.slot),) if self.slot >= 0 else ())


# Their slots hold NaN where nothing is to be read. The last one is padding.
DECODES: Final = (SequenceCase(1, 2, False), SequenceCase(1, 0, True), SequenceCase(1, -1, False))
_PREFILLS: Final = (SequenceCase(9, 1, False), SequenceCase(70, 3, True), SequenceCase(1, 0, False))
_LONG: Final = (
    SequenceCase(64, 0, False),
    SequenceCase(65, -1, False),
    SequenceCase(135, 2, False),
)
# Two of one state, which stays, and states between tokens.
_KEPT: Final = (
    *(SequenceCase(1, 1, False, ((0, 2),)), SequenceCase(3, 1, False, ((0, 4), (1, 5), (2, 6)))),
    *(SequenceCase(11, 0, False, ((1, 7), (8, 8), (10, 0))), SequenceCase(2, -1, True, ((1, 3),))),
)
_SLOTS: Final = 10  # the last one is nobody's, so that a slot too far is still within the array


def groups() -> Iterator[Group]:
    """Yields decodes and prefills of each kernel."""
    cases = []
    steps = (("decodes", DECODES), ("prefills", _PREFILLS), ("states between tokens", _KEPT))
    for name, sequences in steps:
        cases += [
            Case("convolve", f"{name}, gated", _SUMS, partial(_convolve, sequences, gated=True)),
            Case("convolve", f"{name}, SiLU", _SUMS, partial(_convolve, sequences, gated=False)),
            Case("gated_delta", name, _SUMS, partial(_gated_delta, sequences)),
            Case("mamba", name, _SUMS, partial(_mamba, sequences)),
        ]
    chunks = (("one", _PREFILLS), ("several", _LONG))
    for name, sequences in chunks:
        for units, blocks in ((FEW_UNITS, "large blocks"), (_MANY_UNITS, "small blocks")):
            delta = partial(_gated_delta, sequences, in_chunks=True, compute_units=units)
            mamba = partial(_mamba, sequences, in_chunks=True, compute_units=units)
            cases.append(Case("gated_delta in chunks", f"{name}, {blocks}", _HALVES, delta))
            cases.append(Case("mamba in chunks", f"{name}, {blocks}", _HALVES, mamba))
    for groups, gate_first in ((4, False), (2, True)):
        name = "gate, then norm" if gate_first else "norm, then gate"
        measure = partial(_gated_norm, groups=groups, gate_first=gate_first)
        cases.append(Case("gated_norm", name, _SUMS, measure))
    cases.append(Case("joint_norm", "three devices", _SUMS, _joint_norm))
    yield Group(Recipe(), tuple(cases))


def array_of(bench: Workbench, values: npt.NDArray[Any]) -> DeviceArray:
    """Returns a new array with these values."""
    there = bench.device.memory.device(spec(values.shape, values.dtype), "an input").array
    return bench.put(values, there)


def _there(
    bench: Workbench, planned: DeltaScratch[ArraySpec] | MambaScratch[ArraySpec] | None
) -> Any:
    """Returns the same record of arrays on the device."""
    if planned is None:
        return None
    return mapped(
        planned, ArraySpec, lambda name, what: bench.device.memory.device(what, name).array
    )


def activation(bench: Workbench, values: Float32) -> Activation:
    """Returns a new activation in float32 alone."""
    rows, features = values.shape
    return Activation(Forms(), rows, features, f32=array_of(bench, values))


def columns_of(x: Activation, first: int, end: int) -> Activation:
    """Returns columns of it in their place."""
    assert x.f32 is not None
    f32 = x.f32.columns(first, end)
    return Activation(Forms(), x.rows, end - first, f32=f32, stride=x.features)


def batch_of(bench: Workbench, sequences: Sequence[SequenceCase]) -> RecurrentBatch:
    """Returns all sequences, for one launch."""
    tokens = [each.tokens for each in sequences]
    contexts = [each.tokens + (0 if each.is_fresh else 3) for each in sequences]
    starts = [sum(tokens[:count]) for count in range(len(tokens) + 1)]
    # A token or a sequence too far is still within the arrays.
    writes = [-1] * (starts[-1] + 1)
    for each, start in zip(sequences, starts, strict=False):
        for token, slot in each.kept:
            writes[start + token] = slot

    def ints(values: Sequence[int]) -> DeviceArray:
        return array_of(bench, np.array(values, np.int32))

    return RecurrentBatch(
        sequences=ints(range(len(tokens))),
        query_start=ints(starts),
        context_len=ints(contexts),
        reads=ints([*(each.slot for each in sequences), -1]),
        writes=ints(writes),
        count=len(tokens),
        longest=max(tokens),
    )


def states_of(sequences: Sequence[SequenceCase], shape: Sequence[int]) -> Float32:
    """Returns states of all slots, with NaN where nothing is to be read."""
    states = random_values(_SLOTS, int(np.prod(shape))).reshape(_SLOTS, *shape)
    read = {each.slot for each in sequences if not each.is_fresh}
    for slot in set(range(_SLOTS)) - read:
        states[slot] = np.nan
    return states


def _compare(
    bench: Workbench,
    sequences: Sequence[SequenceCase],
    before: Float32,
    after: DeviceArray,
    out: DeviceArray,
    run: Run,
) -> float:
    """Returns the largest error of results and states; other slots must be as before."""
    got, states = bench.get(out).astype(np.float64), bench.get(after).astype(np.float64)
    worst, first = 0.0, 0
    untouched = np.ones(_SLOTS, bool)
    for each in sequences:
        begins = each.is_fresh or each.slot < 0
        begin = np.zeros(before.shape[1:]) if begins else before[each.slot].astype(np.float64)
        rows = slice(first, first + each.tokens)
        want, last = run(rows, begin)
        worst = max(worst, error(got[rows], want))
        for token, slot in each.kept:
            is_last = token == each.tokens - 1
            state = last if is_last else run(slice(first, first + token + 1), begin)[1]
            worst = max(worst, error(states[slot], state))
            untouched[slot] = False
        first += each.tokens
    is_same = np.array_equal(states[untouched], before[untouched], equal_nan=True)
    return worst if is_same else float("inf")


def _convolve(sequences: Sequence[SequenceCase], bench: Workbench, *, gated: bool) -> float:
    rows = sum(each.tokens for each in sequences)
    values = random_values(rows, 3 * _CHANNELS)
    weight, bias = random_values(_CHANNELS, _WIDTH), random_values(1, _CHANNELS)[0]
    states = states_of(sequences, (_WIDTH - 1, _CHANNELS))
    there, whole = array_of(bench, states), activation(bench, values)
    parts = [columns_of(whole, i * _CHANNELS, (i + 1) * _CHANNELS) for i in range(3)]
    out = activation(bench, random_values(rows, _CHANNELS))
    RecurrentKernels(bench.device.library, FEW_UNITS).convolve(
        batch_of(bench, sequences),
        parts[0],
        array_of(bench, weight),
        None if gated else array_of(bench, bias),
        state=there,
        out=out,
        before=parts[1] if gated else None,
        after=parts[2] if gated else None,
        silu=not gated,
    )
    assert out.f32 is not None

    def run(own: slice, state: Float64) -> tuple[Float64, Float64]:
        x, b, c = np.split(values[own].astype(np.float64), 3, axis=1)
        inputs = np.concatenate([state, b * x if gated else x])
        windows = np.stack([inputs[i : i + len(x)] for i in range(_WIDTH)], axis=-1)
        sums = (windows * weight).sum(axis=-1)
        result = sums * c if gated else (sums + bias) / (1 + np.exp(-sums - bias))
        return result, inputs[len(x) :]

    return _compare(bench, sequences, states, there, out.f32, run)


def _gated_delta(
    sequences: Sequence[SequenceCase],
    bench: Workbench,
    *,
    in_chunks: bool = False,
    compute_units: int = FEW_UNITS,
) -> float:
    heads, rows = _DELTA, sum(each.tokens for each in sequences)
    planned = DeltaScratch.plan(heads, rows, len(sequences)) if in_chunks else None
    of_keys, columns = heads.key_features, heads.mixed_features
    values, gates = random_values(rows, columns), random_values(rows, 2 * heads.num_value_heads)
    decay, dt_bias = -np.exp(random_values(2, heads.num_value_heads))
    states = states_of(sequences, (heads.num_value_heads, heads.key_dim, heads.value_dim))
    there, both = array_of(bench, states), activation(bench, gates)
    out = array_of(bench, random_values(rows, heads.value_features))
    RecurrentKernels(bench.device.library, compute_units).gated_delta(
        batch_of(bench, sequences),
        heads,
        qkv=activation(bench, values),
        rates=DeltaRates(
            alpha=columns_of(both, 0, heads.num_value_heads),
            beta=columns_of(both, heads.num_value_heads, 2 * heads.num_value_heads),
            decay=array_of(bench, decay),
            dt_bias=array_of(bench, dt_bias),
        ),
        state=there,
        out=out,
        eps=_EPS,
        scratch=_there(bench, planned),
    )

    def run(own: slice, state: Float64) -> tuple[Float64, Float64]:
        results, state = [], state.copy()
        for row, gate in zip(values[own].astype(np.float64), gates[own], strict=True):
            q, k, v = np.split(row, [of_keys, 2 * of_keys])
            alpha, beta = np.split(gate.astype(np.float64), 2)
            kept = np.exp(decay * np.log1p(np.exp(alpha + dt_bias)))
            for head in range(heads.num_value_heads):
                key = head * heads.num_key_heads // heads.num_value_heads
                own_q, own_k = (_unit(x.reshape(heads.num_key_heads, -1)[key]) for x in (q, k))
                value = v.reshape(heads.num_value_heads, -1)[head]
                state[head] *= kept[head]
                change = (value - own_k @ state[head]) / (1 + np.exp(-beta[head]))
                state[head] += np.outer(own_k, change)
                results.append(own_q @ state[head] / np.sqrt(heads.key_dim))
        return np.concatenate(results).reshape(own.stop - own.start, -1), state

    return _compare(bench, sequences, states, there, out, run)


def _unit(x: Float64) -> Float64:
    unit: Float64 = x / np.sqrt((x * x).sum() + _EPS)
    return unit


def _mamba(
    sequences: Sequence[SequenceCase],
    bench: Workbench,
    *,
    in_chunks: bool = False,
    compute_units: int = FEW_UNITS,
) -> float:
    heads, rows = _MAMBA, sum(each.tokens for each in sequences)
    planned = MambaScratch.plan(heads, rows, len(sequences)) if in_chunks else None
    inner, of_state = heads.inner_features, heads.num_groups * heads.state_size
    values = random_values(rows, heads.mixed_features)
    steps = random_values(rows, heads.num_heads)
    a, dt_bias = -np.exp(random_values(2, heads.num_heads))
    d = random_values(1, heads.num_heads)[0]
    states = states_of(sequences, (heads.num_heads, heads.head_dim, heads.state_size))
    there, out = array_of(bench, states), array_of(bench, random_values(rows, inner))
    RecurrentKernels(bench.device.library, compute_units).mamba(
        batch_of(bench, sequences),
        heads,
        x_bc=activation(bench, values),
        rates=MambaRates(activation(bench, steps), array_of(bench, a), array_of(bench, dt_bias)),
        d=array_of(bench, d),
        state=there,
        out=out,
        scratch=_there(bench, planned),
    )

    def run(own: slice, state: Float64) -> tuple[Float64, Float64]:
        results, state = [], state.copy()
        for row, step in zip(values[own].astype(np.float64), steps[own], strict=True):
            x, b, c = np.split(row, [inner, inner + of_state])
            dt = np.log1p(np.exp(step.astype(np.float64) + dt_bias))
            for head, own_x in enumerate(x.reshape(heads.num_heads, -1)):
                group = head * heads.num_groups // heads.num_heads
                own_b, own_c = (y.reshape(heads.num_groups, -1)[group] for y in (b, c))
                state[head] *= np.exp(dt[head] * a[head])
                state[head] += dt[head] * np.outer(own_x, own_b)
                results.append(state[head] @ own_c + d[head] * own_x)
        return np.concatenate(results).reshape(own.stop - own.start, -1), state

    return _compare(bench, sequences, states, there, out, run)


def _gated_norm(bench: Workbench, *, groups: int, gate_first: bool) -> float:
    rows, dim = 5, 160
    x, z = random_values(rows, groups * dim), random_values(rows, groups * dim)
    weight = random_values(1, groups * dim if gate_first else dim)[0]
    out = activation(bench, random_values(rows, groups * dim))
    RecurrentKernels(bench.device.library, FEW_UNITS).gated_norm(
        *(array_of(bench, x), activation(bench, z), array_of(bench, weight), groups, out, _EPS),
        gate_first=gate_first,
    )
    gate = (z / (1 + np.exp(-z.astype(np.float64)))).reshape(rows, groups, dim)
    of_groups = x.astype(np.float64).reshape(rows, groups, dim)
    normed = oracle.rms_norm(
        of_groups * gate if gate_first else of_groups, weight.reshape(-1, dim), _EPS
    )
    want = normed if gate_first else normed * gate
    return error(bench.result(out), want.reshape(rows, -1))


def _joint_norm(bench: Workbench) -> float:
    """Measures one of three devices; what the others have is four times as large."""
    rows, dim, devices = 5, 160, 3
    x, z, weight = random_values(rows, dim), random_values(rows, dim), random_values(1, dim)[0]
    gated = x.astype(np.float64) * z / (1 + np.exp(-z.astype(np.float64)))
    others = (2 * 16 * (gated**2).sum(axis=1)).astype(np.float32)

    def add_up(array: DeviceArray) -> None:
        own = bench.result(Activation(Forms(), rows, 1, f32=array.first(rows, 1)))
        bench.put((own[:, 0] + others).astype(np.float32), array)

    out, squares = activation(bench, random_values(rows, dim)), array_of(bench, others)
    JointNorm(bench.device.library, add_up).gated_norm(
        *(array_of(bench, x), activation(bench, z), array_of(bench, weight), squares, out),
        *(devices * dim, _EPS),
    )
    mean = (gated**2).sum(axis=1, keepdims=True) * 33 / (devices * dim)
    return error(bench.result(out), gated / np.sqrt(mean + _EPS) * weight)
