"""`rocmforge verify`: right devices pass, and whatever is wrong with a kernel shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.backend.optional import OpCheck
from rocmforge.backend.step import StepInput
from rocmforge.models.layer_config import ExpertsConfig
from rocmforge_hip.backend import create
from rocmforge_hip.device.discovery import find_devices
from rocmforge_hip.device.driver import Dim3
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import find_target, read_manifest
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.platform import select_platform
from rocmforge_hip.load.model import ModelLoading
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.experts.latent import LatentKernels
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.later import is_norm_later
from rocmforge_hip.ops.model_ops import HipOps
from rocmforge_hip.ops.step.device_step import StagedRows
from rocmforge_hip.ops.step.layout import StepLayout
from rocmforge_hip.verify import workbench
from rocmforge_hip.verify.cases import Group
from rocmforge_hip.verify.selfcheck import all_groups, run_group
from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.planting import Launch, change_launches, do_nothing, scale_numbers
from tests.support.models.hip import platform_options, started_platform

# Not launched when models are served.
NOT_SERVING = {"rf_mma_check"}
# Batches of three rows and more go through these where it was measured to be faster, for some
# types in wide blocks; tests of their own check them on the host platform, where none does.
MEASURED = "rf_gemm_int8_*"
REPLACED = ("rf_gemv_*_r[48]", "rf_gemm_*_m*")
"""What they, and kernels of Hopper GPUs, stand for, which is checked on the host platform."""


@pytest.fixture(scope="module")
def platform(request: pytest.FixtureRequest) -> Iterator[HostPlatform | None]:
    """The platform under test; the checking library if it is the host."""
    with started_platform(platform_options(request)) as host:
        yield host


@pytest.fixture
def host(platform: HostPlatform | None) -> Iterator[HostPlatform | None]:
    """The same, with a clean slate for the next test."""
    yield platform
    if platform:
        platform.reset()


def cases_of(group: Group, op: str) -> Group:
    """Those of an operation, of which there are some."""
    chosen = replace(group, cases=tuple(case for case in group.cases if case.op == op))
    assert chosen.cases
    return chosen


def check_first(op: str) -> list[OpCheck]:
    """The checks of an operation on the first model that has any."""
    found = find_devices(select_platform())[0]
    for group in all_groups():
        cases = tuple(case for case in group.cases if case.op == op)
        if cases:
            return list(run_group(found, Group(group.recipe, cases)))
    raise AssertionError(f"nothing checks {op}")


@cache
def is_right(op: str) -> bool:
    """Whether they pass while nothing is planted, which is found out once."""
    return all(check.passed for check in check_first(op))


PLANTED = (
    ("rms_norm", "rf_rms_norm"),
    ("add_rms_norm", "rf_add_rms_norm"),
    ("rms_norm_projection", "rf_rms_norm_columns"),
    ("quantize_act", "rf_quantize_act"),
    ("half_act", "rf_half_act"),
    ("take_rows", "rf_take_rows"),
    ("sum_rows", "rf_sum_rows"),
    ("begin_step", "rf_begin_step"),
    ("embed", "rf_embed_*"),
    ("gemv", "rf_gemv_*"),
    ("gemm", "rf_gemm_*"),
    ("linear", "rf_gemm_*"),
    ("gated gemv", "rf_gemv_*"),
    ("rounded gemv", "rf_gemv_gated_*"),
    ("normed gemv", "rf_gemv_norm_*"),
    ("deferred norm", "rf_gemv_deferred"),
    ("completed norm", "rf_gemv_deferred_mixed"),
    ("completed norm", "rf_gemv_deferred_gated"),
    ("deferred experts", "rf_gemv_deferred_route"),
    ("deferred experts", "rf_clear_logits"),
    ("deferred experts", "rf_experts_choose_gate_up_*"),
    ("deferred experts", "rf_experts_add_down_*"),
    ("hosted experts", "rf_fetch_experts"),
    ("queries to latent vectors", "rf_latent_absorb_*"),
    ("latent vectors", "rf_latent_absorb_*"),
    ("rounded results of heads", "rf_latent_expand_*"),
    ("norm of a product", "rf_gemv_deferred_first"),
    ("completed norm of a product", "rf_gemv_deferred_first"),
    ("gated gemm", "rf_repack_*"),
    ("split gemm", "rf_gemm_sum"),
    ("lora", "rf_lora_expand"),
    ("route", "rf_add_rms_norm_route"),
    ("route", "rf_add_rms_norm_logits"),
    ("route", "rf_route_logits"),
    ("gemm route", "rf_route_gemm"),
    ("route", "rf_route_choose"),
    ("experts", "rf_experts_down_*"),
    ("grouped experts", "rf_mix_experts"),
    ("grouped experts", "rf_add_pairs_rms_norm"),
    ("shared experts", "rf_experts_gate_up_shared_*"),
    ("shared experts", "rf_experts_down_shared_*"),
    ("shared experts", "rf_mix_experts"),
    ("shared experts", "rf_add_pairs_rms_norm"),
    ("experts beside", "rf_experts_gate_up_beside"),
    ("experts beside", "rf_experts_choose_gate_up_beside"),
    ("experts beside", "rf_experts_down_beside"),
    ("add_shared", "rf_add_shared"),
    ("add_shared", "rf_add_shared_rms_norm"),
    ("logits", "rf_softcap"),
    ("rope_and_store", "rf_rope_store_*"),
    ("decode attention", "rf_attention_decode_*"),
    ("prefill attention", "rf_attention_prefill_*"),
    ("sample: greedy", "rf_sample_max"),
    ("sample: draw", "rf_sample_draw"),
    ("sample: top-k, top-p, min-p", "rf_sample_filter"),
    ("sample: penalties and bias", "rf_sample_adjust"),
    ("sample: mask", "rf_sample_mask"),
    ("logprobs", "rf_logprobs"),
    ("layer_norm", "rf_layer_norm"),
    ("add_layer_norm", "rf_add_layer_norm"),
    ("add_two_norms", "rf_add_layer_norm"),
    ("norm_projection", "rf_layer_norm_half"),
    ("add_then_norm", "rf_add_layer_norm"),
    ("gelu", "rf_gelu_half"),
    ("bounded", "rf_clamp_half"),
    ("bounded", "rf_clamp_float"),
    ("bounded gate", "rf_gate_clamped_half"),
    ("image rows", "rf_gemm_*"),
    ("sigmoid_gate", "rf_sigmoid_gate"),
    ("gate_per_layer", "rf_gate_per_layer"),
    ("gemv to another embedding", "rf_gemv_per_layer_r*"),
    ("store_hidden", "rf_store_hidden"),
    ("beside_hidden", "rf_beside_hidden"),
    ("squared_relu", "rf_squared_relu"),
    ("embed_add", "rf_embed_add_*"),
    ("embed_between", "rf_embed_between_*"),
    ("rope", "rf_rope_half"),
    ("full attention", "rf_attention_full_*"),
    ("convolve", "rf_short_conv"),
    ("gated_delta", "rf_gated_delta"),
    ("mamba", "rf_mamba"),
    ("gated_delta in chunks", "rf_gated_delta_solve"),
    ("gated_delta in chunks", "rf_gated_delta_chunks"),
    ("gated_delta in chunks", "rf_gated_delta_chunks_c16"),
    ("mamba in chunks", "rf_mamba_scores"),
    ("mamba in chunks", "rf_mamba_chunks"),
    ("mamba in chunks", "rf_mamba_chunks_c16"),
    ("gated_norm", "rf_gated_norm"),
    ("delta_net at once", "rf_gated_delta_step"),
    ("mamba at once", "rf_mamba_step"),
    ("joint_norm", "rf_gated_squares"),
    ("joint_norm", "rf_joint_norm"),
)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(("op", "kernels"), PLANTED)
def test_a_kernel_without_effect_fails_its_check(
    op: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_right(op)
    change_launches(monkeypatch, kernels, do_nothing)
    assert not all(check.passed for check in check_first(op))


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("op", "kernels"),
    [
        ("embed", "rf_embed_*"),
        ("logits", "rf_softcap"),
        ("decode attention", "rf_attention_decode_*"),
        ("prefill attention", "rf_attention_prefill_*"),
        ("full attention", "rf_attention_full_*"),
    ],
)
def test_a_factor_that_is_a_little_wrong_fails_its_check(
    op: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_launches(monkeypatch, kernels, scale_numbers)
    checks = check_first(op)
    assert not all(check.passed for check in checks)
    assert not any(check.problem for check in checks)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("op", "kernels"),
    [
        ("decode attention", "rf_attention_decode_f16*"),
        ("decode attention", "rf_attention_decode_reduce"),
        ("prefill attention", "rf_attention_prefill_f16*"),
    ],
)
def test_sinks_that_are_not_there_fail_their_check(
    op: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend_without_sinks(launch: Launch, arguments: dict[str, Any]) -> None:
        launch(**{**arguments, "sinks": None})

    group = next(group for group in all_groups() if group.recipe.sinks)
    cases = tuple(case for case in group.cases if case.op == op)
    found = find_devices(select_platform())[0]
    assert all(check.passed for check in run_group(found, Group(group.recipe, cases)))
    change_launches(monkeypatch, kernels, attend_without_sinks)
    assert not any(check.passed for check in run_group(found, Group(group.recipe, cases)))


def first_window_a_row_short(edges: NDArray[np.int32]) -> NDArray[np.int32]:
    """Its last row belongs to the next one."""
    changed = edges.copy()
    changed[1:2] -= 1
    return changed


def two_windows_as_one(edges: NDArray[np.int32]) -> NDArray[np.int32]:
    """The last but one has the rows of the one before it, too."""
    changed = edges.copy()
    changed[-3:-2] = changed[-4:-3]
    return changed


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("wrong", [first_window_a_row_short, two_windows_as_one])
def test_other_windows_of_a_tile_fail_their_check(
    wrong: Callable[[NDArray[np.int32]], NDArray[np.int32]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = StepLayout.pack

    def pack(layout: StepLayout, step: StepInput, *rest: Any, **more: Any) -> None:
        real(layout, replace(step, tile_windows=wrong(step.tile_windows)), *rest, **more)

    (group,) = (group for group in all_groups() if group.recipe.tile_windows)
    monkeypatch.setattr(StepLayout, "pack", pack)
    (check,) = run_group(find_devices(select_platform())[0], group)
    assert not check.passed
    assert not check.problem


def without_both(arguments: dict[str, Any]) -> dict[str, Any]:
    """Neither bias is added."""
    return {"bias": None}


def one_twice(arguments: dict[str, Any]) -> dict[str, Any]:
    """That of the gate is added to what it multiplies, too."""
    return {"up_bias": arguments["bias"]}


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("wrong", [without_both, one_twice])
def test_other_biases_of_gated_products_fail_their_check(
    wrong: Callable[[dict[str, Any]], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bias_otherwise(launch: Launch, arguments: dict[str, Any]) -> None:
        launch(**{**arguments, **wrong(arguments)})

    change_launches(monkeypatch, "rf_gemm_*", bias_otherwise)
    assert not any(check.passed for check in check_first("biased gated gemm"))


def rotate_last(arguments: dict[str, Any]) -> dict[str, Any]:
    """Norms come before rope."""
    return {"rotates_first": 0}


def weights_of_queries(arguments: dict[str, Any]) -> dict[str, Any]:
    """Keys are normed with these, too."""
    return {"k_norm": arguments["q_norm"]}


def first_weights(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same, by the launch that norms both."""
    return {"other_weight": arguments["weight"]}


FUSED = "fused decode attention"


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("architecture", "kernel", "wrong", "ops"),
    [
        ("hunyuan-moe", "rf_rope_store_*", rotate_last, ["rope_and_store", FUSED]),
        ("hunyuan-moe", "rf_attention_decode_*", rotate_last, [FUSED]),
        ("olmo2", "rf_rms_norm_columns", first_weights, ["rope_and_store", FUSED]),
        ("olmo2", "rf_attention_decode_joint_*", weights_of_queries, [FUSED]),
    ],
)
def test_other_norms_of_heads_fail_their_check(
    architecture: str,
    kernel: str,
    wrong: Callable[[dict[str, Any]], dict[str, Any]],
    ops: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def norm_otherwise(launch: Launch, arguments: dict[str, Any]) -> None:
        launch(**{**arguments, **wrong(arguments)})

    group = next(group for group in all_groups() if group.recipe.architecture == architecture)
    found = find_devices(select_platform())[0]
    assert all(check.passed for check in run_group(found, group))
    change_launches(monkeypatch, kernel, norm_otherwise)
    failed = [check.op for check in run_group(found, group) if not check.passed]
    assert failed == ops


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        ("convolve", "rf_short_conv"),
        ("gated_delta", "rf_gated_delta"),
        ("mamba", "rf_mamba"),
        ("gated_delta in chunks", "rf_gated_delta_chunks*"),
        ("mamba in chunks", "rf_mamba_chunks*"),
        ("delta_net at once", "rf_gated_delta_step"),
        ("mamba at once", "rf_mamba_step"),
    ],
)
@pytest.mark.parametrize("name", ["state", "reads", "writes"])
def test_states_of_a_neighbour_fail_their_check(
    op: str, kernel: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the next slot, read for the next sequence, or kept a token late."""

    def next_of(array: DeviceArray) -> DeviceArray:
        return array._replace(address=array.address + array.nbytes // array.shape[0])

    def shift(launch: Launch, arguments: dict[str, Any]) -> None:
        batch = arguments["batch"]
        if name == "state":
            launch(**{**arguments, name: next_of(arguments[name])})
        else:
            launch(
                **{**arguments, "batch": replace(batch, **{name: next_of(getattr(batch, name))})}
            )

    change_launches(monkeypatch, kernel, shift)
    assert not any(check.passed for check in check_first(op))


def test_a_context_has_the_splits_that_run_at_once(
    host: HostPlatform | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host is None:
        pytest.skip("a large GPU cuts so short a context into the smallest splits in any case")
    tokens: list[int] = []

    def note_tokens(launch: Launch, arguments: dict[str, Any]) -> None:
        tokens.append(arguments["split_tokens"])
        launch(**arguments)

    change_launches(monkeypatch, "rf_attention_decode_f16*", note_tokens)
    for blocks in (3, 1):
        monkeypatch.setattr(Kernel, "blocks_at_once", lambda *_, blocks=blocks: blocks)
        assert all(check.passed for check in check_first("decode attention"))
    assert len(tokens) == 2
    assert tokens[0] < tokens[1]


REAL_LINEAR, REAL_TWO_NORMS = HipOps.linear, HipOps.two_norms_of_sum


def without_bias(ops: HipOps, step: Any, x: Any, weight: Any, bias: Any) -> Any:
    """A product to which nothing is added."""
    return REAL_LINEAR(ops, step, x, weight, None)


def one_norm_twice(ops: HipOps, x: Any, delta: Any, first: Any, second: Any) -> Any:
    """Two norms with the same weights."""
    return REAL_TWO_NORMS(ops, x, delta, first, first)


REAL_ROUTE, REAL_EXPERTS = HipOps.add_norm_route, HipOps.experts


def as_the_next(array: DeviceArray | None) -> DeviceArray:
    """The rows behind those of an array of four-byte elements."""
    assert array is not None
    return array._replace(address=array.address + 4 * array.shape[-1])


def experts_of_neighbours(ops: HipOps, x: Any, chosen: Activation, *others: Any) -> Any:
    """Each token goes to the experts of the next."""
    chosen.i32 = as_the_next(chosen.i32)
    return REAL_EXPERTS(ops, x, chosen, *others)


def weights_of_neighbours(
    ops: HipOps, x: Any, chosen: Any, weights: Activation, *others: Any
) -> Any:
    """Each token has the weights of the next."""
    weights.f32 = as_the_next(weights.f32)
    return REAL_EXPERTS(ops, x, chosen, weights, *others)


def without_the_last_token(ops: HipOps, x: Activation, chosen: Activation, *others: Any) -> Any:
    """The last of several tokens goes to no expert."""
    x.rows = max(1, x.rows - 1)
    mixed = REAL_EXPERTS(ops, x, chosen, *others)
    mixed.rows = chosen.rows
    mixed.f32 = mixed.arrays.float32(mixed.rows, mixed.features)
    return mixed


def without_groups(
    ops: HipOps, residual: Any, delta: Any, norms: Any, experts: Any, rule: ExpertsConfig
) -> Any:
    """Experts are chosen among those of all groups."""
    rule = replace(rule, num_groups=1, num_chosen_groups=1)
    return REAL_ROUTE(ops, residual, delta, norms, experts, rule)


def without_selection(
    ops: HipOps, residual: Any, delta: Any, norms: Any, experts: Any, rule: ExpertsConfig
) -> Any:
    """Experts are chosen by their probabilities alone."""
    experts = replace(experts, selection_bias=None)
    return REAL_ROUTE(ops, residual, delta, norms, experts, rule)


def routed_before_the_sum(
    ops: HipOps, residual: Any, delta: Any, norms: Any, experts: Any, rule: ExpertsConfig
) -> Any:
    """What attention adds to the residual is left out."""
    return REAL_ROUTE(ops, residual, residual, norms, experts, rule)


REAL_EXPAND, REAL_NEOX = HipOps.expand, LatentKernels._neox
REAL_STORED, REAL_ROTATION = LatentKernels._stored, LatentKernels._rotation
REAL_FIRST = HipOps.norm_first


def results_of_neighbours(ops: HipOps, step: Any, x: Activation, *others: Any) -> Any:
    """Each head has the sum of latent vectors of the next one."""
    x.f32 = as_the_next(x.f32.first(x.rows, 512)) if x.f32 is not None else None
    return REAL_EXPAND(ops, step, x, *others)


def other_pairs(kernels: LatentKernels, spec: Any) -> int:
    """Elements rotate in the pairs of the other style."""
    return 1 - REAL_NEOX(kernels, spec)


def the_next(array: DeviceArray) -> DeviceArray:
    """What stands behind each element but the last, which stays."""
    step = array.dtype.itemsize * (array.shape[0] > 1)
    return array._replace(address=array.address + step)


def slots_of_neighbours(kernels: LatentKernels, *arguments: Any) -> dict[str, Any]:
    """Rows are stored for the sequences behind theirs."""
    stored = REAL_STORED(kernels, *arguments)
    return {**stored, "slots": the_next(stored["slots"])}


def positions_of_neighbours(kernels: LatentKernels, *arguments: Any) -> dict[str, Any]:
    """Elements rotate as those of the sequences behind theirs."""
    rotation = REAL_ROTATION(kernels, *arguments)
    return {**rotation, "positions": the_next(rotation["positions"])}


def factor_of_another_norm(ops: HipOps, *arguments: Any) -> Any:
    """What reads a norm completes it with the first sum of its squares left out."""
    first, second = REAL_FIRST(ops, *arguments)
    assert is_norm_later(first)
    first.squares = the_next(first.squares.first(first.features // 32))
    return first, second


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("op", "owner", "method", "wrong"),
    [
        ("experts", HipOps, "experts", experts_of_neighbours),
        ("experts", HipOps, "experts", weights_of_neighbours),
        ("experts", HipOps, "experts", without_the_last_token),
        ("grouped experts", HipOps, "experts", experts_of_neighbours),
        ("grouped experts", HipOps, "experts", without_the_last_token),
        ("route", HipOps, "add_norm_route", without_groups),
        ("route", HipOps, "add_norm_route", without_selection),
        ("route", HipOps, "add_norm_route", routed_before_the_sum),
        ("linear", HipOps, "linear", without_bias),
        ("add_two_norms", HipOps, "two_norms_of_sum", one_norm_twice),
        ("full attention", ModelLoading, "_load_slopes", lambda loading: None),
        ("absorb", LatentKernels, "_neox", other_pairs),
        ("store_latent", LatentKernels, "_neox", other_pairs),
        ("queries to latent vectors", LatentKernels, "_neox", other_pairs),
        ("latent vectors", LatentKernels, "_neox", other_pairs),
        ("latent vectors", LatentKernels, "_stored", slots_of_neighbours),
        ("latent vectors", LatentKernels, "_rotation", positions_of_neighbours),
        ("queries to latent vectors", LatentKernels, "_rotation", positions_of_neighbours),
        ("completed norm of a product", HipOps, "norm_first", factor_of_another_norm),
        ("expand", HipOps, "expand", results_of_neighbours),
        ("rounded results of heads", HipOps, "expand", results_of_neighbours),
    ],
    ids=[
        "experts of neighbours",
        "weights of neighbours",
        "a token dropped",
        "grouped experts of neighbours",
        "a token of a group dropped",
        "no groups",
        "no selection bias",
        "no sum before the router",
        "no bias",
        "one norm twice",
        "no slopes",
        "other pairs of queries",
        "other pairs of keys",
        "other pairs of queries that one launch makes",
        "other pairs of keys in that launch",
        "slots of neighbours",
        "keys of other positions",
        "queries of other positions",
        "the factor of another norm",
        "results of other heads",
        "rounded results of other heads",
    ],
)
def test_a_mistake_in_the_use_of_right_kernels_fails_its_check(
    op: str, owner: type, method: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_devices(select_platform())[0]
    monkeypatch.setattr(owner, method, wrong)
    for group in all_groups():
        cases = tuple(case for case in group.cases if case.op == op)
        if cases and not all(
            check.passed for check in run_group(found, Group(group.recipe, cases))
        ):
            return
    raise AssertionError(f"no check of {op} fails")


def test_checks_that_nobody_waits_for_leave_nothing_on_the_device(
    host: HostPlatform | None,
) -> None:
    if host is None:
        pytest.skip("only the host platform counts what is in use")
    before = host.live_bytes
    with closing(run_group(find_devices(select_platform())[0], next(all_groups()))) as checks:
        assert next(checks).passed
        assert host.live_bytes > before
    assert host.live_bytes == before


@pytest.mark.usefixtures("host")
def test_rows_of_embeddings_that_do_not_arrive_fail_their_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = find_devices(select_platform())[0]
    for group in all_groups():
        cases = tuple(case for case in group.cases if case.name == "rows of embeddings")
        if cases:
            break
    assert all(check.passed for check in run_group(found, Group(group.recipe, cases)))
    monkeypatch.setattr(StagedRows, "copy_to", lambda self, x: None)
    assert not any(check.passed for check in run_group(found, Group(group.recipe, cases)))


@pytest.mark.slow
def test_every_kernel_that_serves_is_checked_and_right(
    host: HostPlatform | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: set[str] = set()
    real = Kernel.launch

    def launch(self: Kernel[...], grid: Dim3, block: int, **arguments: Any) -> None:
        launched.add(self.name)
        real(self, grid, block, **arguments)

    monkeypatch.setattr(Kernel, "launch", launch)
    (device,) = create().devices(None, 1)
    checks = list(create().check_ops(device, "*"))
    assert [check for check in checks if not check.passed] == []
    target = find_devices(select_platform())[0].properties.target
    idle = set(read_manifest(find_target(target))["kernels"]) - launched
    unused = (MEASURED,) if host is not None else (MEASURED, *REPLACED)
    idle = {name for name in idle if not any(fnmatchcase(name, each) for each in unused)}
    assert idle <= NOT_SERVING


@pytest.mark.usefixtures("host")
def test_rows_whose_weights_are_copied_ahead_are_checked() -> None:
    found = find_devices(select_platform())[0]
    kernels = [f"rf_gemv_deferred{product}_stream" for product in ("", "_mixed", "_gated")]
    if kernels[0] not in read_manifest(find_target(found.properties.target))["kernels"]:
        pytest.skip("this device has no such kernels")
    group = next(group for group in all_groups() if group.recipe.least_streamed_features)
    chosen = cases_of(group, "completed norm")
    assert all(check.passed for check in run_group(found, chosen))
    for kernel in kernels:
        with pytest.MonkeyPatch.context() as patch:
            change_launches(patch, kernel, do_nothing)
            assert not any(check.passed for check in run_group(found, chosen)), kernel


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("op", ["gemv", "gated gemv"])
def test_products_on_int8_matrix_instructions_are_checked(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices on which they are used pass; with a mistake in them they do not."""
    check_int8_products(monkeypatch, op, MEASURED, wide_blocks=0)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("op", ["gemv", "gated gemv", "gated gemm"])
def test_wide_products_on_int8_matrix_instructions_are_checked(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of more rows than GEMV takes, if they are gated."""
    check_int8_products(monkeypatch, op, "rf_gemm_int8_wide_*", wide_blocks=1)


def _complete_nothing(launch: Launch, arguments: dict[str, Any]) -> None:
    """A product that takes norms that were left for later as they are."""
    launch(**{**arguments, "squares": None})


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("kernels", "mistake"),
    [("rf_gemm_int8_deferred_q4_k", do_nothing), ("rf_gemm_int8_q4_k", _complete_nothing)],
    ids=["not_added", "not_completed"],
)
def test_norms_of_few_rows_that_are_left_for_later_are_checked(
    kernels: str,
    mistake: Callable[[Launch, dict[str, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = next(
        group
        for group in all_groups()
        if any((case.op, case.name) == ("completed norm", "q4_k, 8 rows") for case in group.cases)
    )
    check_finds(monkeypatch, cases_of(group, "completed norm"), kernels, mistake)


def check_int8_products(
    monkeypatch: pytest.MonkeyPatch, op: str, kernels: str, *, wide_blocks: int
) -> None:
    """Checks that cases of q4_k pass with int8 matrix instructions, and not without `kernels`."""
    group = next(
        group
        for group in all_groups()
        if (group.recipe.format, group.recipe.least_wide_blocks) == ("q4_k", wide_blocks)
    )
    check_finds(monkeypatch, cases_of(group, op), kernels, do_nothing)


def check_finds(
    monkeypatch: pytest.MonkeyPatch,
    chosen: Group,
    kernels: str,
    mistake: Callable[[Launch, dict[str, Any]], None],
) -> None:
    """Checks that cases pass with int8 matrix instructions, and none with a mistake in kernels."""
    monkeypatch.setattr(
        workbench, "geometry_of", lambda device: Geometry(device.compute_units, matrix_rows=1)
    )
    found = find_devices(select_platform())[0]
    assert all(check.passed for check in run_group(found, chosen))
    change_launches(monkeypatch, kernels, mistake)
    assert not any(check.passed for check in run_group(found, chosen))
