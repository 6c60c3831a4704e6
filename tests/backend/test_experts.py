"""The experts of the reference backend: by their definition, and mistakes that must be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.models.config import ActivationFunction
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge_reference import ops
from tests.backend.conftest import DEFAULTS, Load
from tests.backend.driving import Chunk
from tests.backend.test_goldens import TOLERANCE
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_models import GOLDEN_ROWS, PROMPT, by_name, goldens
from tests.support.engine.core import make_core, tokens_of
from tests.support.files.gguf_writer import Stored, write_gguf

Float64 = npt.NDArray[np.float64]
Route = Callable[..., tuple[Any, Any]]
RULE = ExpertsConfig(
    num_experts=8, num_chosen=3, intermediate_size=5, router=RouterFunction.SOFTMAX, normalised=True
)


def by_definition(
    logits: list[float], bias: list[float] | None, rule: ExpertsConfig
) -> dict[int, float]:
    """The weight of each expert that one token is sent to, with nothing but Python."""
    raised = [float(np.exp(logit)) for logit in logits]
    probabilities = {
        RouterFunction.SOFTMAX: [value / sum(raised) for value in raised],
        RouterFunction.SIGMOID: [value / (1 + value) for value in raised],
        RouterFunction.SOFTMAX_OF_CHOSEN: logits,
    }[rule.router]
    scores = [p + b for p, b in zip(probabilities, bias or [0.0] * len(logits), strict=True)]
    size = len(logits) // rule.num_groups
    groups = [range(first, first + size) for first in range(0, len(logits), size)]
    groups.sort(key=lambda group: -sum(sorted(scores[i] for i in group)[-2:]))
    candidates = [i for group in groups[: rule.num_chosen_groups] for i in group]
    chosen = sorted(candidates, key=lambda i: -scores[i])[: rule.num_chosen]
    weights = {i: probabilities[i] for i in chosen}
    if rule.router is RouterFunction.SOFTMAX_OF_CHOSEN:
        total = sum(raised[i] for i in chosen)
        weights = {i: raised[i] / total for i in chosen}
    if rule.normalised:
        total = max(sum(weights.values()), 2.0**-14)
        weights = {i: weight / total for i, weight in weights.items()}
    return {i: weight * rule.scale for i, weight in weights.items()}


@pytest.mark.parametrize("router", RouterFunction)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("groups", "chosen_groups"), [(1, 1), (4, 2), (2, 1)])
def test_tokens_are_routed_as_defined(
    router: RouterFunction, has_bias: bool, normalised: bool, groups: int, chosen_groups: int
) -> None:
    rng = np.random.default_rng(1)
    logits, bias = 2 * rng.standard_normal((20, 8)), rng.standard_normal(8)
    rule = replace(
        RULE,
        router=router,
        normalised=normalised,
        num_groups=groups,
        num_chosen_groups=chosen_groups,
        scale=1.7,
    )
    chosen, weights = ops.route(logits, bias if has_bias else None, rule)
    for token, row in enumerate(logits.tolist()):
        found = dict(zip(chosen[token].tolist(), weights[token].tolist(), strict=True))
        assert found == pytest.approx(by_definition(row, bias.tolist() if has_bias else None, rule))


def test_of_equal_scores_the_first_expert_is_chosen() -> None:
    chosen, weights = ops.route(np.zeros((1, 8)), None, RULE)
    assert chosen.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(weights, 1 / 3)


def test_weights_of_no_size_are_not_blown_up() -> None:
    rule = replace(RULE, router=RouterFunction.SIGMOID)
    _, weights = ops.route(np.full((1, 8), -1000.0), None, rule)
    assert weights.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("has_biases", [False, True])
@pytest.mark.parametrize("activation", ActivationFunction)
def test_experts_are_mixed_as_defined(activation: ActivationFunction, has_biases: bool) -> None:
    rng = np.random.default_rng(2)
    x, chosen = 4 * rng.standard_normal((6, 4)), np.array([[0, 2], [2, 1], [1, 0]] * 2)
    weights = rng.standard_normal((6, 2))
    gate, up = rng.standard_normal((2, 3, 5, 4))
    down = rng.standard_normal((3, 4, 5))
    of_gate, of_up, of_down = (rng.standard_normal((3, size)) for size in (5, 5, 4))
    if not has_biases:
        of_gate, of_up, of_down = 0 * of_gate, 0 * of_up, 0 * of_down
    biases = (of_gate, of_up, of_down) if has_biases else (None, None, None)
    found = ops.mix_experts(x, chosen, weights, (gate, up, down), biases, activation)
    for token in range(6):
        expected = np.zeros(4)
        for e, weight in zip(chosen[token], weights[token], strict=True):
            g, u = gate[e] @ x[token] + of_gate[e], up[e] @ x[token] + of_up[e]
            if activation is ActivationFunction.CLAMPED_SWIGLU:
                g, u = np.minimum(g, 7), np.clip(u, -7, 7)
                inner = g / (1 + np.exp(-1.702 * g)) * (u + 1)
            else:
                inner = ops.activate(g, activation) * u
            expected += weight * (down[e] @ inner + of_down[e])
        np.testing.assert_allclose(found[token], expected, rtol=1e-9)


def next_expert(route: Route, *args: Any) -> tuple[Any, Any]:
    """The last expert of each token is another."""
    chosen, weights = route(*args)
    rule = args[2]
    left = [next(e for e in range(rule.num_experts) if e not in row) for row in chosen.tolist()]
    return np.concatenate([chosen[:, :-1], np.array(left)[:, None]], axis=1), weights


def weights_of_neighbours(route: Route, *args: Any) -> tuple[Any, Any]:
    """The weights of a token are those of the token before it."""
    chosen, weights = route(*args)
    return chosen, np.roll(weights, 1, axis=0)


def not_normalised(route: Route, *args: Any) -> tuple[Any, Any]:
    logits, bias, rule = args
    return route(logits, bias, replace(rule, normalised=not rule.normalised))


def bias_in_weights(route: Route, *args: Any) -> tuple[Any, Any]:
    """The weights are the scores by which experts are chosen."""
    logits, bias, rule = args
    chosen, _ = route(*args)
    weights = np.take_along_axis(ops.sigmoid(logits) + bias, chosen, axis=-1)
    return chosen, rule.scale * weights / weights.sum(axis=-1, keepdims=True)


def other_groups(route: Route, *args: Any) -> tuple[Any, Any]:
    """Experts are chosen among those of all groups."""
    logits, bias, rule = args
    return route(logits, bias, replace(rule, num_groups=1, num_chosen_groups=1))


def softmax_of_all(route: Route, *args: Any) -> tuple[Any, Any]:
    logits, bias, rule = args
    return route(logits, bias, replace(rule, router=RouterFunction.SOFTMAX))


def first_dropped(route: Route, *args: Any) -> tuple[Any, Any]:
    """Of the first token, an expert is dropped."""
    chosen, weights = route(*args)
    weights[0, -1] = 0
    return chosen, weights


def test_experts_in_mxfp4_are_what_their_dequantised_selves_are(load: Load, tmp_path: Path) -> None:
    model, kind = by_name("gpt-oss"), GGMLQuantizationType.MXFP4
    plain, stored = gguf_tensors(model), dict[str, Any]()
    for name, values in plain.items():
        if name.endswith("_exps.weight"):
            stored[name] = Stored(quantize(values, kind), kind)
            plain[name] = dequantize(stored[name].data, kind)
    path, rounded = tmp_path / "mxfp4.gguf", tmp_path / "rounded.gguf"
    write_gguf(path, gguf_metadata(model), plain | stored)
    write_gguf(rounded, gguf_metadata(model), plain)
    chunk = Chunk(tokens=PROMPT, blocks=[3, 1, 2])
    np.testing.assert_array_equal(
        load(path).logprobs(chunk, GOLDEN_ROWS), load(rounded).logprobs(chunk, GOLDEN_ROWS)
    )


def test_a_sink_takes_its_part_of_the_softmax() -> None:
    rng = np.random.default_rng(3)
    q, sinks = rng.standard_normal((200, 6, 4)), rng.standard_normal(6)
    keys, values = rng.standard_normal((2, 13, 2, 16, 4))
    table, positions = rng.permutation(13)[None], np.arange(200)
    found = ops.paged_attention(
        q,
        keys,
        values,
        positions=positions,
        query_start=np.array([0, 200]),
        context_len=np.array([200]),
        block_table=table,
        scale=0.5,
        softcap=None,
        window=150,
        sinks=sinks,
    )
    flat_keys, flat_values = (
        cache[table[0]].swapaxes(1, 2).reshape(-1, 2, 4) for cache in (keys, values)
    )
    for token in (0, 7, 130, 199):
        for head in range(6):
            seen = slice(max(0, token - 149), token + 1)
            scores = 0.5 * flat_keys[seen, head // 3] @ q[token, head]
            raised = np.exp(np.append(scores, sinks[head]))
            expected = raised[:-1] / raised.sum() @ flat_values[seen, head // 3]
            np.testing.assert_allclose(found[token, head], expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["glm4moe", "gpt-oss", "deepseek-v3"])
def test_eight_requests_at_once_with_preemptions_get_what_each_gets_alone(
    name: str, load: Load
) -> None:
    options = replace(DEFAULTS, max_sequences=8, max_batched_tokens=24, kv_blocks=12)
    requests = [
        (
            PROMPT[:16] + PROMPT[start : start + 9 + start],
            SamplingParams(temperature=0, max_tokens=20),
        )
        for start in range(8)
    ]
    runner = load(name, max_batched_tokens=24, kv_blocks=12).runner
    together, stats = tokens_of(make_core(runner, options), requests)
    assert stats.totals.preemptions > 0
    assert stats.totals.prefix_hit_tokens > 0
    alone = [tokens_of(make_core(runner, options), [request])[0][0] for request in requests]
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) > 1


def error_of(name: str, load: Load) -> float:
    """Of log-probabilities against Transformers, in the unit of the tolerance there."""
    logits = np.array(goldens(name)["logits"])
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    got = load(name).logprobs(Chunk(tokens=PROMPT, blocks=[3, 1, 2]), GOLDEN_ROWS)
    return float(np.abs(got - expected).max() / logits.std() / TOLERANCE)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("qwen3moe", next_expert),
        ("qwen3moe", weights_of_neighbours),
        ("qwen3moe", not_normalised),
        ("qwen3moe", first_dropped),
        ("qwen2moe", not_normalised),
        ("glm4moe", bias_in_weights),
        ("glm4moe", other_groups),
        ("gpt-oss", softmax_of_all),
    ],
)
def test_a_mistake_in_the_routing_is_seen(
    name: str,
    mistake: Callable[..., tuple[Any, Any]],
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    route = ops.route
    monkeypatch.setattr(ops, "route", lambda *args: mistake(route, *args))
    assert error_of(name, load) > 30
