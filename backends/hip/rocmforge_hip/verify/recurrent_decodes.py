"""Checks that one launch for everything between two products has the bits of one each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from rocmforge.models.layer_config import DeltaConfig, MambaConfig
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.recurrent.decodes import DecodeKernels, GroupNorm
from rocmforge_hip.ops.recurrent.kernels import DeltaRates, MambaRates, RecurrentKernels
from rocmforge_hip.verify.cases import Case, Group
from rocmforge_hip.verify.recurrent import (
    DECODES,
    FEW_UNITS,
    SequenceCase,
    activation,
    array_of,
    batch_of,
    columns_of,
    states_of,
)
from rocmforge_hip.verify.rows import random_values
from rocmforge_hip.verify.workbench import Recipe, Workbench

_EPS: Final = 1e-6
_WIDTH: Final = 4
_DELTA: Final = DeltaConfig(num_key_heads=2, num_value_heads=6, key_dim=128, value_dim=128)
_TILED: Final = DeltaConfig(
    num_key_heads=2, num_value_heads=4, key_dim=64, value_dim=96, is_tiled=True
)
_MAMBA: Final = MambaConfig(num_heads=6, head_dim=64, num_groups=2, state_size=128, norm_eps=_EPS)
# Two of one state, which stays; one that is not kept.
_OTHER_SLOTS: Final = (
    *(SequenceCase(1, 1, False, ((0, 2),)), SequenceCase(1, 1, False, ((0, 4),))),
    *(SequenceCase(1, 0, False, ((0, 0),)), SequenceCase(1, -1, True, ((0, 3),))),
)


def groups() -> Iterator[Group]:
    """Yields layers of both kinds."""
    cases = []
    for name, sequences in (("decodes", DECODES), ("other slots", _OTHER_SLOTS)):
        for kind, heads in (("", _DELTA), (", tiled", _TILED)):
            measure = partial(_delta_net, sequences, heads)
            cases.append(Case("delta_net at once", name + kind, 0.0, measure))
        for kind, norms in (("", False), (", normed", True)):
            measure = partial(_mamba, sequences, norms)
            cases.append(Case("mamba at once", name + kind, 0.0, measure))
    yield Group(Recipe(), tuple(cases))


def _difference(bench: Workbench, got: list[DeviceArray], want: list[DeviceArray]) -> float:
    """Returns 0 if all arrays have the same bits."""
    same = all(
        np.array_equal(bench.get(mine).view(np.uint8), bench.get(theirs).view(np.uint8))
        for mine, theirs in zip(got, want, strict=True)
    )
    return 0.0 if same else float("inf")


def _delta_net(sequences: tuple[SequenceCase, ...], heads: DeltaConfig, bench: Workbench) -> float:
    rows, inner, channels = len(sequences), heads.value_features, heads.mixed_features
    x, gate = (activation(bench, random_values(rows, size)) for size in (channels, inner))
    gates = activation(bench, random_values(rows, 2 * heads.num_value_heads))
    rates = DeltaRates(
        columns_of(gates, 0, heads.num_value_heads),
        columns_of(gates, heads.num_value_heads, 2 * heads.num_value_heads),
        array_of(bench, -np.exp(random_values(1, heads.num_value_heads)[0])),
        array_of(bench, random_values(1, heads.num_value_heads)[0]),
    )
    taps = array_of(bench, random_values(channels, _WIDTH))
    norm = array_of(bench, random_values(1, heads.value_dim)[0])
    inputs = states_of(sequences, (_WIDTH - 1, channels))
    states = states_of(sequences, (heads.num_value_heads, heads.key_dim, heads.value_dim))
    filled, batch = random_values(rows, inner), batch_of(bench, sequences)

    def arrays() -> tuple[DeviceArray, DeviceArray, Activation]:
        return array_of(bench, inputs), array_of(bench, states), activation(bench, filled)

    own_inputs, own_states, out = arrays()
    kernels = RecurrentKernels(bench.device.library, FEW_UNITS)
    convolved = activation(bench, random_values(rows, channels))
    results = array_of(bench, random_values(rows, inner))
    kernels.convolve(batch, x, taps, None, own_inputs, convolved, silu=True)
    kernels.gated_delta(batch, heads, convolved, rates, own_states, results, _EPS)
    kernels.gated_norm(results, gate, norm, heads.num_value_heads, out, _EPS, gate_first=False)
    assert out.f32 is not None
    want = [own_inputs, own_states, out.f32]

    own_inputs, own_states, out = arrays()
    arrived = array_of(bench, np.zeros(rows * heads.num_key_heads, np.uint32))
    DecodeKernels(bench.device.library).delta_net(
        *(batch, heads, x, taps, rates, gate, norm),
        *((own_inputs, own_states), arrived, out, _EPS),
    )
    assert out.f32 is not None
    return _difference(bench, [own_inputs, own_states, out.f32], want)


def _mamba(sequences: tuple[SequenceCase, ...], norms: bool, bench: Workbench) -> float:
    heads, rows = _MAMBA, len(sequences)
    inner, channels = heads.inner_features, heads.mixed_features
    x = activation(bench, random_values(rows, channels))
    dt = activation(bench, random_values(rows, heads.num_heads))
    a = array_of(bench, -np.exp(random_values(1, heads.num_heads)[0]))
    d, offset = (array_of(bench, random_values(1, heads.num_heads)[0]) for _ in range(2))
    taps = array_of(bench, random_values(channels, _WIDTH))
    bias = array_of(bench, random_values(1, channels)[0])
    inputs = states_of(sequences, (_WIDTH - 1, channels))
    states = states_of(sequences, (heads.num_heads, heads.head_dim, heads.state_size))
    filled, batch = random_values(rows, inner), batch_of(bench, sequences)
    gate, norm = activation(bench, filled + 1), array_of(bench, random_values(1, inner)[0])

    def arrays() -> list[DeviceArray]:
        return [array_of(bench, values) for values in (inputs, states, filled, filled)]

    want = own_inputs, own_states, out, of_groups = arrays()
    kernels = RecurrentKernels(bench.device.library, FEW_UNITS)
    convolved = activation(bench, random_values(rows, channels))
    kernels.convolve(batch, x, taps, bias, own_inputs, convolved, silu=True)
    rates = MambaRates(dt, a, offset)
    kernels.mamba(batch, heads, convolved, rates, d, own_states, out)
    normed = Activation(Forms(), rows, inner, f32=of_groups)
    if norms:
        kernels.gated_norm(out, gate, norm, heads.num_groups, normed, _EPS, gate_first=True)

    got = own_inputs, own_states, out, of_groups = arrays()
    normed = replace(normed, f32=of_groups)
    of_last = GroupNorm(gate=gate, weight=norm, out=normed, eps=_EPS)
    arrived = array_of(bench, np.zeros(rows * heads.num_groups, np.uint32))
    DecodeKernels(bench.device.library).mamba(
        *(batch, heads, x, taps, bias, rates, d, (own_inputs, own_states), arrived, out),
        of_last if norms else None,
    )
    return _difference(bench, got, want)
