"""Checks of mixtures of experts: the choice of experts, what they make, and the shared one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.blocks import Experts
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge.models.weights import present
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, ExpertArrays
from rocmforge_hip.ops.geometry import groups_experts
from rocmforge_hip.ops.step.variants import VARIANTS
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error, values_of
from rocmforge_hip.verify.matrices import completed_error, exact_activation
from rocmforge_hip.verify.rows import int8_error, random_values
from rocmforge_hip.verify.workbench import Recipe, Workbench
from rocmforge_hip.weights.formats import FLOAT_FORMATS, FORMATS

_WEIGHTS: Final = 1e-5  # relative to the largest
# Relative to the sum of the absolute values of what is added up.
_FLOAT_SUM: Final = 1e-5
_INT8: Final = 2.0**-6  # what is between gate and down, in one slice
_TWO_SLICES: Final = 2.0**-14
_HALVES: Final = 2.0**-10  # of weights and of what is between gate and down, in groups

_NO_GEMM: Final = 1 << 30  # logits of a router

_RULE: Final = ExpertsConfig(
    num_experts=8,
    num_chosen=3,
    intermediate_size=256,
    router=RouterFunction.SOFTMAX,
    normalised=True,
    scale=1.5,
)
_SHAPE: Final = Recipe(architecture="llama", hidden_size=256, kv_heads=1, experts=_RULE)

Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields routers of each kind, every stored type, and activations with biases."""
    grouped = replace(_RULE, num_groups=4, num_chosen_groups=2)
    wide = replace(_RULE, num_experts=150, num_chosen=20, normalised=False)
    for architecture, rule in (
        ("llama", wide),
        ("llama", grouped),
        ("glm4moe", replace(grouped, router=RouterFunction.SIGMOID)),
        ("gpt-oss", replace(_RULE, router=RouterFunction.SOFTMAX_OF_CHOSEN)),
    ):
        recipe = replace(
            _SHAPE,
            architecture=architecture,
            experts=replace(rule, intermediate_size=32),
            least_route_logits=_NO_GEMM,
        )
        name = f"{rule.num_chosen} of {rule.num_experts}, {rule.router}"
        cases = [
            Case("route", f"{name}, {tokens} tokens", _WEIGHTS, partial(_route, tokens))
            for tokens in (1, 9, 17)
        ]
        yield Group(recipe, tuple(cases))
    recipe = replace(_SHAPE, experts=replace(wide, intermediate_size=32), least_route_logits=1)
    yield Group(recipe, (Case("gemm route", "70 tokens", _WEIGHTS, partial(_route, 70)),))
    # The logit of a shared expert is left over by tiles of 64.
    rule = replace(_RULE, num_experts=128, intermediate_size=32, shared_intermediate_size=64)
    recipe = replace(_SHAPE, architecture="qwen2moe", experts=rule, least_route_logits=1)
    case = Case("gemm route", "70 tokens, beside a shared expert", _WEIGHTS, partial(_route, 70))
    yield Group(recipe, (case,))
    recipe = replace(_SHAPE, architecture="gemma4", experts=replace(_RULE, normalised=True))
    cases = [
        Case("route", f"between norms, {tokens} tokens", _WEIGHTS, partial(_route, tokens))
        for tokens in (1, 9, 17)
    ]
    yield Group(recipe, tuple(cases))
    # One of the size of the others is one of them.
    for times, what in ((1, "to a shared expert"), (2, "beside a shared expert")):
        rule = replace(_RULE, shared_intermediate_size=times * _RULE.intermediate_size)
        recipe = replace(_SHAPE, architecture="qwen2moe", experts=rule)
        cases = [
            Case("route", f"{what}, {tokens} tokens", _WEIGHTS, partial(_route, tokens))
            for tokens in (1, 9, 17)
        ]
        yield Group(recipe, tuple(cases))
    for name in FORMATS:
        limit = _FLOAT_SUM if name in FLOAT_FORMATS else _INT8
        yield Group(replace(_SHAPE, format=name), tuple(_mixed(name, limit)))
        if name not in FLOAT_FORMATS:
            recipe = replace(_SHAPE, format=name, activation_bits="16")
            yield Group(recipe, tuple(_mixed(f"{name}, two slices", _TWO_SLICES, slices=2)))
    for name in (name for name, format in FORMATS.items() if format.is_quantised):
        biased = replace(_SHAPE, architecture="gpt-oss", format="q8_0", expert_format=name)
        yield Group(biased, (Case("deferred experts", name, _INT8, _deferred),))
        # Some devices have other kernels for blocks that all run at once.
        waiting = replace(biased, compute_units=1)
        yield Group(waiting, (Case("deferred experts", f"{name}, in turns", _INT8, _deferred),))
    ahead = replace(biased, least_streamed_features=1)
    yield Group(ahead, (Case("deferred experts", "copied ahead", _INT8, _deferred),))
    biased = replace(_SHAPE, architecture="gpt-oss", format="mxfp4", activation_bits="16")
    yield Group(biased, tuple(_mixed("mxfp4, biases", _TWO_SLICES, slices=2)))
    ungated = replace(_SHAPE, architecture="nemotron_h_moe", format="q5_0", activation_bits="16")
    yield Group(ungated, tuple(_mixed("q5_0, squared", _TWO_SLICES, slices=2)))
    hosted = replace(_SHAPE, format="q4_k", device_experts=0.25)
    yield Group(hosted, tuple(_hosted("q4_k")))
    shared = replace(_RULE, shared_intermediate_size=64)
    for architecture, what in (("qwen2moe", "weighted"), ("glm4moe", "as it is")):
        recipe = replace(_SHAPE, architecture=architecture, experts=shared)
        cases = [
            Case("add_shared", f"{what}, {name}", _FLOAT_SUM, partial(_add_shared, name))
            for name in ("to a sum", "to a norm", "norms to a norm")
        ]
        yield Group(recipe, tuple(cases))
    larger = replace(_RULE, shared_intermediate_size=2 * _RULE.intermediate_size)
    of_experts = (name for name, format in FORMATS.items() if format.is_quantised)
    for index, name in enumerate(of_experts):
        recipe = replace(
            _SHAPE,
            architecture=("qwen2moe", "glm4moe")[index % 2],  # with a share of its own, or without
            experts=larger,
            format=name if index % 3 else "q8_0",  # of the network, which may be another
            expert_format=name,
        )
        cases = [Case("experts beside", name, _INT8, _beside)]
        cases.append(Case("experts beside", f"{name}, which choose", _INT8, _choosing_beside))
        yield Group(recipe, tuple(cases))


def _mixed(name: str, limit: float, slices: int = 1) -> Iterator[Case]:
    is_shared = slices == 1 and bool(FORMATS[name].exponent_scales)
    # Of 64, experts have so many that some devices keep them in LDS.
    for tokens in (1, 2, 5, 12, 64) if is_shared else (1, 2, 12, 64):
        mix, what = partial(_mix, tokens=tokens), f"{name}, {tokens} tokens"
        if is_shared and 2 < tokens < 64:
            # Some devices have kernels of their own for these; others group them, more exactly.
            yield Case("shared experts", what, limit, mix)
        elif groups_experts(tokens * _RULE.num_chosen, _RULE.num_experts, slices):
            yield Case("grouped experts", what, _HALVES, mix)
        else:
            yield Case("experts", what, limit, mix)


def _hosted(name: str) -> Iterator[Case]:
    """Yields cases in whose last one experts have so many tokens that the host's are fetched."""
    for tokens, limit in ((1, _INT8), (12, _HALVES), (100, _HALVES)):
        yield Case(
            "hosted experts", f"{name}, {tokens} tokens", limit, partial(_mix, tokens=tokens)
        )


def _experts(bench: Workbench) -> tuple[ExpertsConfig, Experts[Tensor], ExpertArrays[DeviceArray]]:
    """Returns how experts are chosen, their weights, and the arrays for them."""
    rule, experts = bench.config.layers[0].experts, bench.weights.layers[0].experts
    return present(rule), present(experts), present(bench.model.arena.experts)


def _routed(
    experts: Experts[Tensor], normed: Float64, rule: ExpertsConfig
) -> tuple[npt.NDArray[np.int32], Float64]:
    """Returns the experts that a router chooses for each token, and their weights."""
    logits = normed @ values_of(experts.router).T
    if experts.router_bias is not None:
        logits += values_of(experts.router_bias)
    selection = None if experts.selection_bias is None else values_of(experts.selection_bias)
    return oracle.route(logits, selection, rule)


def _share(experts: Experts[Tensor], normed: Float64) -> Float64 | None:
    """Returns what a shared expert counts for each token; None if it has no router."""
    router = present(experts.shared).router
    if router is None:
        return None
    share: Float64 = 1 / (1 + np.exp(-(normed @ values_of(router))))
    return share


def _networks(
    experts: Experts[Tensor],
    chosen: npt.NDArray[np.integer],
    factors: npt.NDArray[np.floating],
    share: float,
) -> Iterator[tuple[float, Float64, Float64, Float64]]:
    """Yields the factor, gate, up and down of a token's experts, and of the network beside them."""
    matrices = [values_of(each) for each in (experts.gate, experts.up, experts.down)]
    for expert, factor in zip(chosen.tolist(), factors.tolist(), strict=True):
        gate, up, down = (matrix[expert] for matrix in matrices)
        yield float(factor), gate, up, down
    shared = present(experts.shared)
    yield share, values_of(shared.gate), values_of(shared.up), values_of(shared.down)


def _route(tokens: int, bench: Workbench) -> float:
    rule, experts, arrays = _experts(bench)
    # No two cases share values, so that what an earlier one has left is wrong.
    width = bench.config.hidden_size
    old, delta = random_values(tokens, width), random_values(tokens + 1, width)[:tokens]
    want = (old + delta).astype(np.float64)
    weights, on_device = bench.weights.layers[0], bench.model.weights.layers[0]
    ops, added = bench.model.ops, bench.activation(bench.model.arena.delta, delta)
    norms = [norm for norm in [on_device.feed_forward_norm] if norm is not None]
    if on_device.attention_post_norm is not None:
        added = ops.norm(added, on_device.attention_post_norm, None)
        want = old + _normed(bench, delta, weights.attention_post_norm)
        second = present(on_device.experts).norm
        assert second is not None
        norms.append(second)
    total, found, (chosen, factors) = ops.add_norm_route(
        bench.activation(bench.residual, old), added, norms, present(on_device.experts), rule
    )
    wanted_norms = [
        _normed(bench, want, weight)
        for weight in (weights.feed_forward_norm, experts.norm)[: len(norms)]
    ]
    normed = wanted_norms[0]
    if experts.router_norm is not None:
        normed = _normed(bench, want, experts.router_norm)
    wanted, wanted_factors = _routed(experts, normed, rule)
    share = None if experts.shared is None else _share(experts, normed)
    if present(on_device.experts).shared is None and share is not None:
        wanted = np.pad(wanted + 1, ((0, 0), (0, 1)))
        wanted_factors, share = np.column_stack([wanted_factors, share]), None
    if experts.weight_scale is not None:
        wanted_factors = wanted_factors * values_of(experts.weight_scale)[wanted]
    assert chosen.i32 is not None
    if not np.array_equal(bench.get(chosen.i32), wanted):
        return float("inf")
    shares = 0.0 if share is None else error(bench.get(arrays.shares.first(tokens)), share)
    return max(
        shares,
        error(bench.result(total), want),
        *(error(bench.result(x), norm) for x, norm in zip(found, wanted_norms, strict=True)),
        error(bench.result(factors), wanted_factors),
    )


def _normed(bench: Workbench, x: npt.NDArray[np.floating], weight: Tensor | None) -> Float64:
    return oracle.rms_norm(x.astype(np.float64), values_of(present(weight)), bench.config.norm_eps)


def _mix(bench: Workbench, tokens: int) -> float:
    """Returns the error of what experts add to the residual, in the sum alone and in its norm."""
    rule, experts, arrays = _experts(bench)
    rng = np.random.default_rng(tokens)
    values = exact_activation(tokens, bench.config.hidden_size) / np.float32(16)
    places = [rng.permutation(rule.num_experts)[: rule.num_chosen] for _ in range(tokens)]
    chosen = np.array(places, np.int32)
    factors = rng.uniform(0.2, 1, chosen.shape).astype(np.float32)
    x = bench.activation(bench.model.arena.normed, values)
    names = bench.put(chosen, arrays.chosen.int32(*chosen.shape))
    got = bench.model.ops.experts(
        x,
        Activation(arrays.chosen, tokens, rule.num_chosen, i32=names),
        bench.activation(arrays.weights, factors),
        present(bench.model.weights.layers[0].experts),
        bench.config.activation,
    )
    gates = experts.up if experts.gate is None else experts.gate
    matrices = [values_of(each) for each in (gates, experts.up, experts.down)]
    biases = [
        np.zeros(matrix.shape[:2]) if bias is None else values_of(bias)
        for matrix, bias in zip(
            matrices, (experts.gate_bias, experts.up_bias, experts.down_bias), strict=True
        )
    ]
    want, size = np.zeros((2, tokens, bench.config.hidden_size))
    for token, place in np.ndindex(chosen.shape):
        (gate, up, down), (of_gate, of_up, of_down) = (
            [each[chosen[token, place]] for each in parts] for parts in (matrices, biases)
        )
        row = values[token].astype(np.float64)
        inner = up @ row + of_up
        if experts.gate is None:
            inner = oracle.activate(inner, bench.config.activation)
        else:
            inner = oracle.gated(gate @ row + of_gate, inner, bench.config.activation)
        factor = float(factors[token, place])
        want[token] += factor * (down @ inner + of_down)
        size[token] += factor * (np.abs(down) @ np.abs(inner) + np.abs(of_down))
    old, errors = random_values(tokens, bench.config.hidden_size), []
    for norm in (None, bench.model.weights.layers[0].attention_norm):
        residual = bench.activation(bench.residual, old)
        total, normed = bench.model.ops.add_norm(residual, got, norm, None)
        found = bench.result(total)
        errors.append(error(found, want + old, size + np.abs(old)))
    of_norm = _normed(bench, found, bench.weights.layers[0].attention_norm)
    return max(*errors, error(bench.result(normed), of_norm))


def _deferred(bench: Workbench) -> float:
    """Returns the error of experts that choose, complete a norm and add to the residual."""
    rule, experts, _ = _experts(bench)
    layer, on_device = bench.weights.layers[0], bench.model.weights.layers[0]
    own, there = present(layer.attention), present(on_device.attention)
    eps, ops = bench.config.norm_eps, bench.model.ops
    values = exact_activation(1, own.output.shape[1]) / np.float32(4)
    old = random_values(50, bench.config.hidden_size)[49:]
    step = replace(bench.step([(1, 1, [])]), variant=VARIANTS["deferred"])
    on_experts, norm = present(on_device.experts), on_device.feed_forward_norm
    assert norm is not None
    for is_last in (False, True):
        attended = bench.activation(bench.model.arena.attended, values)
        delta = ops.linear(step, attended, there.output, there.output_bias)
        residual = bench.activation(bench.residual, old)
        total, (normed,), (chosen, factors) = ops.add_norm_route(
            residual, delta, [norm], on_experts, rule
        )
        mixed = ops.experts(normed, chosen, factors, on_experts, bench.config.activation)
        if not is_last:  # what is normed alone leaves nothing behind, either
            ops.norm(mixed, on_device.attention_norm, None)
    want = old + values.astype(np.float64) @ values_of(own.output).T + values_of(own.output_bias)
    read = oracle.rms_norm(want, values_of(present(layer.feed_forward_norm)), eps)
    places, weights = _routed(experts, read, rule)
    assert chosen.i32 is not None
    if not np.array_equal(bench.get(chosen.i32), places):
        return float("inf")
    sizes, largest, kind = np.abs(want), _largest_of_blocks(read), bench.config.activation
    matrices = [values_of(each) for each in (experts.gate, experts.up, experts.down)]
    biases = [values_of(b) for b in (experts.gate_bias, experts.up_bias, experts.down_bias)]
    for expert, weight in zip(places[0].tolist(), weights[0].tolist(), strict=True):
        gate, up, down = (each[expert] for each in matrices)
        of_gate, of_up, of_down = (each[expert] for each in biases)
        gated, linear = read @ gate.T + of_gate, read @ up.T + of_up
        inner = oracle.gated(gated, linear, kind)
        rounded = largest @ np.abs(gate).T * np.abs(linear + 1) + largest @ np.abs(up).T
        want = want + weight * (inner @ down.T + of_down)
        sizes = sizes + weight * ((_largest_of_blocks(inner) + 1.2 * rounded) @ np.abs(down).T)
    total, normed = ops.add_norm(total, mixed, on_device.attention_norm, None)
    found = bench.result(total).astype(np.float64)  # rounding before it is no error of its norm
    errors = error(bench.result(factors), weights), error(found, want, sizes)
    of_norm = values_of(present(layer.attention_norm))
    rounding = int8_error(bench, normed, found * of_norm)
    return max(*errors, rounding, completed_error(bench, normed, found))


def _beside(bench: Workbench) -> float:
    """Returns the error of experts and a network beside them, whose sum goes to the residual."""
    rule, experts, arrays = _experts(bench)
    layer, on_device = bench.weights.layers[0], bench.model.weights.layers[0]
    there = present(on_device.experts)
    width, ops, kind = bench.config.hidden_size, bench.model.ops, bench.config.activation
    values, old = exact_activation(1, width) / np.float32(16), random_values(60, width)[59:]
    chosen = np.random.default_rng(1).permutation(rule.num_experts)[None, : rule.num_chosen]
    factors = np.linspace(0.2, 1, rule.num_chosen, dtype=np.float32)[None]
    x = bench.activation(bench.model.arena.normed, values)
    names = bench.put(chosen.astype(np.int32), arrays.chosen.int32(*chosen.shape))
    choice = Activation(arrays.chosen, 1, rule.num_chosen, i32=names)
    step = replace(bench.step([(1, 1, [])]), variant=VARIANTS["deferred"])
    weights = bench.activation(arrays.weights, factors)
    network, share = present(there.shared), 1.0
    if network.router is not None:
        share = 0.75
        bench.put(np.array([share], np.float32), arrays.shares.first(1))
    mixed, made = ops.experts_beside(step, (x, x), (choice, weights), there, network, kind)
    total = ops.add_shared(mixed, made, x, network.router)
    residual = bench.activation(bench.residual, old)
    total, normed = ops.add_norm(residual, total, on_device.attention_norm, None)
    row, want, size = values[0].astype(np.float64), old.astype(np.float64), np.abs(old)
    for factor, gate, up, down in _networks(experts, chosen[0], factors[0], share):
        inner = oracle.gated(gate @ row, up @ row, kind)
        want = want + factor * (down @ inner)
        size = size + factor * (np.abs(down) @ np.abs(inner))
    found = bench.result(total).astype(np.float64)  # rounding before it is no error of its norm
    of_norm = _normed(bench, found, layer.attention_norm)
    return max(error(found, want, size), int8_error(bench, normed, of_norm))


def _choosing_beside(bench: Workbench) -> float:
    """Returns the same where gate and up of both choose the experts and complete a norm."""
    rule, experts, _ = _experts(bench)
    layer, on_device = bench.weights.layers[0], bench.model.weights.layers[0]
    own, there = present(layer.attention), present(on_device.experts)
    ops, kind, norm = bench.model.ops, bench.config.activation, on_device.feed_forward_norm
    values = exact_activation(1, own.output.shape[1]) / np.float32(4)
    old = random_values(70, bench.config.hidden_size)[69:]
    step = replace(bench.step([(1, 1, [])]), variant=VARIANTS["deferred"])
    attended = bench.activation(bench.model.arena.attended, values)
    delta = ops.linear(step, attended, present(on_device.attention).output, None)
    residual = bench.activation(bench.residual, old)
    assert norm is not None
    total, (x,), choice = ops.add_norm_route(residual, delta, [norm], there, rule)
    network = present(there.shared)
    mixed, made = ops.experts_beside(step, (x, x), choice, there, network, kind)
    added = ops.add_shared(mixed, made, x, network.router)
    total, normed = ops.add_norm(total, added, on_device.attention_norm, None)
    want = old + values.astype(np.float64) @ values_of(own.output).T
    read, size = _normed(bench, want, layer.feed_forward_norm), np.abs(want)
    chosen, factors = _routed(experts, read, rule)
    if not np.array_equal(bench.get(present(choice[0].i32)), chosen):
        return float("inf")
    largest, share = _largest_of_blocks(read), _share(experts, read)
    of_shared = 1.0 if share is None else float(share[0])
    for factor, gate, up, down in _networks(experts, chosen[0], factors[0], of_shared):
        of_gate, of_up = read @ gate.T, read @ up.T
        inner = oracle.gated(of_gate, of_up, kind)
        rounded = largest @ np.abs(gate).T * np.abs(of_up) + largest @ np.abs(up).T
        want = want + factor * (inner @ down.T)
        size = size + factor * ((_largest_of_blocks(inner) + 1.2 * rounded) @ np.abs(down).T)
    found = bench.result(total).astype(np.float64)  # rounding before it is no error of its norm
    of_norm = _normed(bench, found, layer.attention_norm)
    errors = error(bench.result(choice[1]), factors), error(found, want, size)
    return max(*errors, int8_error(bench, normed, of_norm))


def _largest_of_blocks(x: Float64) -> Float64:
    """Returns the largest absolute value of its block for each element of a row."""
    largest: Float64 = np.abs(x.reshape(-1, QUANT_BLOCK)).max(axis=1).repeat(QUANT_BLOCK)
    return largest


def _add_shared(name: str, bench: Workbench) -> float:
    """Checks a sum on its way into the residual, that is normed or not, as what is added is."""
    *_, arrays = _experts(bench)
    ops, width, arena = bench.model.ops, bench.config.hidden_size, bench.model.arena
    mixed, shared, old = (random_values(rows, width)[:5].astype(np.float64) for rows in (5, 6, 8))
    layer, on_device = bench.weights.layers[0], bench.model.weights.layers[0]
    norms = on_device.attention_norm, on_device.feed_forward_norm
    places = (arrays.mixed, mixed), (arena.delta, shared)
    first, second = (bench.activation(forms, rows.astype(np.float32)) for forms, rows in places)
    if name == "norms to a norm":
        first, second = ops.norm(first, norms[0], None), ops.norm(second, norms[1], None)
        mixed = _normed(bench, mixed, layer.attention_norm)
        shared = _normed(bench, shared, layer.feed_forward_norm)
    router = present(present(on_device.experts).shared).router
    shares = np.ones(5, np.float32)
    if router is not None:
        shares = np.linspace(0.2, 0.9, 5, dtype=np.float32)
        bench.put(shares, arrays.shares.first(5))
    total = ops.add_shared(first, second, first, router)  # what a router reads is of no use now
    want = mixed + shares[:, None].astype(np.float64) * shared
    if name == "norms to a norm":
        total, want = ops.norm(total, norms[0], None), _normed(bench, want, layer.attention_norm)
    want += old
    residual = bench.activation(bench.residual, old.astype(np.float32))
    got, x = ops.add_norm(residual, total, None if name == "to a sum" else norms[1], None)
    wanted = want if name == "to a sum" else _normed(bench, want, layer.feed_forward_norm)
    return max(error(bench.result(got), want), error(bench.result(x), wanted))
