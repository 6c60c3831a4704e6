"""How many launches a layer takes in a step of decodes, and that few of them give the same bits."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.backend.protocol import LoadOptions
from rocmforge.backend.step import StepOutput
from rocmforge_hip.load import loading
from rocmforge_hip.ops.expert_layers import ExpertLayers
from rocmforge_hip.ops.geometry import geometry_of
from rocmforge_hip.ops.linear.gemm import GemmKernels
from rocmforge_hip.ops.step.variants import VARIANTS
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.variant_choice import StepVariants
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.tiny_gemma4 import sized_gemma4
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.models.hip import fitting, quantized, write_quantized
from tests.support.models.options import SMALL
from tests.support.models.runners import bits, load_hip
from tests.support.models.state_models import with_layers, write_states

pytestmark = pytest.mark.usefixtures("short_splits")

OPTIONS = replace(SMALL, max_sequences=4, graphs="off", activation_bits="8")
MIX = {
    "attn_v": "q6_k",
    "attn_k_b": "q8_0",
    "_exps": "q5_0",
    "_shexp": "q5_0",
    "ffn_down": "q6_k",
    "ffn_gate_inp": "f32",
}
"""As llama.cpp's Q4_K_M has it in half of the layers; rows of these experts are short."""
WANTS = (Want(num_logprobs=0),)
DENSE = {"leading_dense_block_count": 9}, {"first_k_dense_replace": 9}


def runner_of(
    stack: ExitStack,
    folder: Path,
    name: str,
    layers: int,
    options: LoadOptions = OPTIONS,
    **sizes: int,
) -> HipRunner:
    name, _, kind = name.partition(", ")
    type_name, mix = "q4_k", MIX
    if kind.startswith("in "):
        # Of which some files have values in a K-quant.
        type_name = kind.removeprefix("in ").lower()
        mix = {"_exps": type_name, "ffn_gate_inp": "f32"}
        if type_name != "bf16":
            mix |= {"attn_v": "q4_k", "ffn_down.": "q6_k"}
    model = quantized(by_name(name), type_name)
    if kind.startswith("experts in "):
        mix = MIX | {"_exps": kind.removeprefix("experts in ").lower()}
    if kind == "shared expert of another type":
        mix = MIX | {"_shexp": "q8_0"}
    if kind == "dense":
        of_file, of_config = DENSE
        model = replace(model, keys=model.keys | of_file, config=model.config | of_config)
    if kind == "twelve heads to a key":
        sizes |= {"num_attention_heads": 12, "num_key_value_heads": 1}
    if model.architecture == "gemma4":
        model = replace(
            sized_gemma4(model, num_hidden_layers=layers, **sizes), name=f"{name}-{layers}"
        )
        return load_hip(stack, write_quantized(model, type_name, folder, mix), options)
    keys = {key: layers if key == "block_count" else value for key, value in model.keys.items()}
    config = model.config | {"num_hidden_layers": layers, **sizes}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    model = replace(model, name=f"{model.name}-{layers}", config=config, keys=keys)
    return load_hip(stack, write_quantized(model, type_name, folder, mix), options)


def prompted(runner: HipRunner, sequences: int) -> Driver:
    """A driver of so many sequences, after their prompts: four in a step, which has no variants."""
    driver = Driver(runner)
    for first in range(0, sequences, 4):
        rows = range(first, min(first + 4, sequences))
        driver.run(
            *(
                Chunk(tokens=PROMPT[: length(row)], blocks=[1 + row], wants=(), state_slot=row)
                for row in rows
            )
        )
    return driver


def length(row: int) -> int:
    """Of a sequence's prompt: they are not the same, and few enough for a step of four."""
    return 2 + row % 2


def decodes(driver: Driver, count: int) -> StepOutput:
    """A step of so many sequences, after their prompts.

    It can be taken again and again, as it only writes what it wrote before; with states, which it
    changes, prompts come anew.
    """
    if driver.runner.info.state_slots:
        driver = prompted(runner_under(driver), count)
    return driver.run(
        *(
            Chunk(
                tokens=[7 + row],
                start=length(row),
                blocks=[1 + row],
                wants=WANTS,
                state_slot=row,
            )
            for row in range(count)
        )
    )


def results(driver: Driver, counts: tuple[int, ...] = (1, 2, 4)) -> list[StepOutput]:
    """Steps of so many sequences.

    On NVIDIA GPUs four go through int8 matrix instructions, whose launches are others.
    """
    few = runner_under(driver).info.device.target.startswith("sm_")
    return [decodes(driver, count) for count in counts if count < 4 or not few]


def runner_under(driver: Driver) -> HipRunner:
    assert isinstance(driver.runner, HipRunner)
    return driver.runner


@pytest.mark.parametrize(
    ("name", "layer", "expected"),
    [
        ("llama", 1, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 5}),
        ("qwen3", 1, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 5}),
        # Each of two blocks puts the key into the cache.
        (
            "qwen3, twelve heads to a key",
            1,
            {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 5},
        ),
        ("llama, in Q4_0", 1, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 5}),
        ("llama, in IQ2_S", 1, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 5}),
        # Nothing is rounded, and norms of floats are not left for later.
        ("llama, in BF16", 1, {"plain": 9, "fused": 7, "rounded": 7, "fewest": 5, "deferred": 7}),
        ("gemma3", 1, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 7}),
        ("gemma4", 1, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 7}),
        # Queries and keys are normed as a whole, in attention's launch or before it, and the
        # residual is rounded for them as it is.
        ("olmo2", 1, {"plain": 11, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 7}),
        # The second layer has heads of 512.
        ("gemma4", 2, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5, "deferred": 7}),
        # Four of them are of the other embedding, if sums are launches of their own, or three where
        # its gate is made with what that gates; the last layer reads another's cache.
        ("gemma4-e", 1, {"plain": 14, "fused": 12, "rounded": 10, "fewest": 7}),
        ("gemma4-e", 4, {"plain": 14, "fused": 12, "rounded": 10, "fewest": 7}),
        ("gemma4-e, in Q4_0", 1, {"plain": 14, "fused": 12, "rounded": 10, "fewest": 7}),
    ],
)
def test_launches_of_a_layer(
    stack: ExitStack, tmp_path: Path, name: str, layer: int, expected: dict[str, int]
) -> None:
    assert launches_of(stack, tmp_path, name, layer, tuple(expected)) == expected


@pytest.mark.parametrize("name", ["llama, in Q4_0", "llama, in BF16"])
def test_more_rows_than_the_kernels_for_a_type_take_have_launches_of_their_own(
    stack: ExitStack, tmp_path: Path, name: str
) -> None:
    """Those for types that files do not mix take four; for floats, eight."""
    runner = runner_of(stack, tmp_path, name, 2, replace(OPTIONS, max_sequences=8))
    driver, found = prompted(runner, 5), []
    for variant in VARIANTS:
        runner.variants = StepVariants.always(variant)
        found.append(bits(decodes(driver, 5)))
    assert found == [found[0]] * len(VARIANTS)


@pytest.mark.parametrize(
    ("name", "layer", "expected"),
    [
        (
            "qwen3moe",
            1,
            {"plain": 9, "fused": 7, "rounded": 7, "fewest": 7, "deferred": 5, "deferred-plain": 7},
        ),
        # A shared expert as large as the others is one of them.
        ("glm4moe", 1, {"plain": 9, "fused": 7, "rounded": 7, "fewest": 7, "deferred": 5}),
        # Norms of queries and keys as a whole, and behind rope.
        ("olmoe", 1, {"plain": 10, "fused": 7, "rounded": 7, "fewest": 7, "deferred": 5}),
        ("minimax-m2", 1, {"plain": 10, "fused": 7, "rounded": 7, "fewest": 7, "deferred": 5}),
        ("hunyuan-moe", 1, {"plain": 9, "fused": 7, "rounded": 7, "fewest": 7, "deferred": 5}),
        (
            "qwen3moe, experts in Q4_0",
            1,
            {"plain": 9, "fused": 7, "rounded": 7, "fewest": 7, "deferred": 5},
        ),
        # Other networks beside the experts have two or three, with the rounding; a norm adds both.
        # For one token, they are multiplied in the launches of the experts.
        ("dots1", 2, {"plain": 12, "fused": 10, "rounded": 9, "fewest": 9, "deferred": 5}),
        # The router of such a network is a row of theirs.
        (
            "qwen2moe, shared expert of another type",
            1,
            {"plain": 12, "fused": 10, "rounded": 9, "fewest": 9, "deferred": 5},
        ),
        (
            "qwen2moe, experts in MXFP4",
            1,
            {"plain": 12, "fused": 10, "rounded": 9, "fewest": 9, "deferred": 5},
        ),
        ("gemma4-moe", 1, {"plain": 12, "fused": 10, "rounded": 9, "fewest": 9, "deferred": 6}),
        (
            "gemma4-moe, experts in Q5_1",
            1,
            {"plain": 12, "fused": 10, "rounded": 9, "fewest": 9, "deferred": 6},
        ),
        (
            "gemma4-moe, in Q4_0",
            1,
            {"plain": 12, "fused": 10, "rounded": 9, "fewest": 9, "deferred": 6},
        ),
    ],
)
def test_launches_of_a_layer_with_experts(
    stack: ExitStack, tmp_path: Path, name: str, layer: int, expected: dict[str, int]
) -> None:
    """Of one or two tokens, which are routed by the launch that norms them."""
    assert launches_of(stack, tmp_path, name, layer, tuple(expected), (1, 2)) == expected


LATENT_LAUNCHES = {
    "deepseek-v2, dense": (16, 15, 9, 7, 7, 8),
    "deepseek-v2": (18, 17, 11, 11, 7, 8),
    # Their queries are made of the norm of a product.
    "deepseek-v3, dense": (18, 17, 11, 9, 8, 9),
    "deepseek-v3": (17, 16, 11, 11, 8, 9),
}
"""In the order of `VARIANTS`."""


@pytest.mark.parametrize("name", LATENT_LAUNCHES)
def test_launches_of_a_layer_with_latent_attention(
    stack: ExitStack, tmp_path: Path, name: str
) -> None:
    expected = dict(zip(VARIANTS, LATENT_LAUNCHES[name], strict=True))
    assert launches_of(stack, tmp_path, name, 2, tuple(expected), (1, 2)) == expected


def launches_of(
    stack: ExitStack,
    folder: Path,
    name: str,
    layer: int,
    variants: tuple[str, ...],
    counts: tuple[int, ...] = (1, 2, 4),
) -> dict[str, int]:
    """What this layer adds to each way to take a step of one token; all give the same bits."""
    runners = [runner_of(stack, folder, name, layers) for layers in (layer, layer + 1)]
    return added(runners, variants, counts)


def added(
    runners: list[HipRunner], variants: tuple[str, ...], counts: tuple[int, ...]
) -> dict[str, int]:
    """What the second model takes beyond the first; all variants give the same bits."""
    launches, same_bits = {}, {}
    drivers = [prompted(runner, max(counts)) for runner in runners]
    for variant in variants:
        found = []
        for runner, driver in zip(runners, drivers, strict=True):
            runner.variants = StepVariants.always(variant)
            outputs = results(driver, counts)
            found.append([output.cost.launches for output in outputs if output.cost is not None])
        launches[variant], *others = (more - less for less, more in zip(*found, strict=True))
        # Norms of several tokens that GEMV multiplies are not left for later.
        same = launches["rounded" if VARIANTS[variant].defers_norms else variant]
        if variant == "deferred-plain":
            same += launches["plain"] - launches["fused"]
        assert set(others) <= {same}
        same_bits[variant] = list(map(bits, outputs))
    assert all(each == same_bits["plain"] for each in same_bits.values())
    return launches


@pytest.fixture
def int8_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets int8 matrix instructions multiply four rows, as they are measured to be faster."""
    monkeypatch.setattr(
        loading, "geometry_of", lambda device: replace(geometry_of(device), matrix_rows=4)
    )


def steps_of_four(runner: HipRunner) -> dict[str, tuple[int, tuple[bytes, bytes]]]:
    """The launches and the results of a step of four decodes in each variant."""
    found, driver = {}, prompted(runner, 4)
    for variant in VARIANTS:
        runner.variants = StepVariants.always(variant)
        output = decodes(driver, 4)
        assert output.cost is not None
        found[variant] = output.cost.launches, bits(output)
    return found


@pytest.mark.usefixtures("int8_rows")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Values have another type, which is a launch more.
        ("llama", (11, 9, 9, 9, 7, 9)),
        ("qwen3", (11, 9, 9, 9, 7, 9)),
        ("llama, in Q4_0", (11, 9, 9, 9, 7, 9)),
        # Norms lie between.
        ("gemma3", (11, 9, 9, 9, 9, 11)),
    ],
)
def test_launches_of_a_layer_on_int8_matrix_instructions(
    stack: ExitStack, tmp_path: Path, name: str, expected: tuple[int, ...]
) -> None:
    """Of four tokens, in the order of `VARIANTS`."""
    less, more = (steps_of_four(runner_of(stack, tmp_path, name, layers)) for layers in (1, 2))
    launches = tuple(more[variant][0] - less[variant][0] for variant in VARIANTS)
    assert launches == expected
    assert len({results for _, results in more.values()}) == 1


@pytest.mark.usefixtures("int8_rows")
@pytest.mark.parametrize(
    "name", ["olmo2", "gemma4", "gemma4-e", "qwen3moe", "dots1", "deepseek-v3"]
)
def test_variants_give_the_same_bits_on_int8_matrix_instructions(
    stack: ExitStack, tmp_path: Path, name: str
) -> None:
    found = steps_of_four(runner_of(stack, tmp_path, name, 3))
    assert len({results for _, results in found.values()}) == 1


LINEAR, FULL = "linear_attention", "full_attention"


@pytest.mark.usefixtures("int8_rows")
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen35", (LINEAR, LINEAR, LINEAR, FULL, LINEAR)),
        ("granitehybrid-dense", (LINEAR, FULL, LINEAR)),
        ("nemotron_h", (LINEAR, "mlp", FULL, "mlp")),
        ("lfm2", ("conv", FULL, "conv")),
    ],
)
def test_variants_give_the_same_bits_with_states_on_int8_matrix_instructions(
    stack: ExitStack, tmp_path: Path, name: str, kinds: tuple[str, ...]
) -> None:
    model = with_layers(by_name(name), kinds, hidden_size=256, intermediate_size=256)
    path = write_states(model, tmp_path, "q8_0")
    found = steps_of_four(load_hip(stack, path, OPTIONS))
    assert len({results for _, results in found.values()}) == 1
    assert found["deferred-plain"][0] < found["plain"][0]


@pytest.mark.parametrize(
    ("name", "kinds", "expected"),
    [
        ("qwen35", (LINEAR, LINEAR, LINEAR, FULL, LINEAR), (10, 8, 7, 5, 5, 7)),
        ("qwen35moe", (LINEAR, FULL, LINEAR), (9, 7, 7, 7, 5, 7)),
        # A group of Mamba-2 has several heads, whose last block norms it in the last variants.
        ("granitehybrid-dense", (LINEAR, FULL, LINEAR, LINEAR), (10, 9, 8, 5, 5, 7)),
        ("granitehybrid", (LINEAR, FULL, LINEAR), (12, 11, 10, 9, 5, 7)),
        # Parts that others put into one layer are layers here.
        ("nemotron_h", (LINEAR, "mlp", FULL, LINEAR), (6, 5, 5, 3, 3, 5)),
        ("nemotron_h", (LINEAR, "mlp", FULL, "mlp"), (4, 4, 4, 3, 4, 4)),
        ("lfm2", ("conv", FULL, "conv", FULL, "conv"), (8, 8, 7, 5, 5, 5)),
    ],
)
def test_launches_of_a_layer_with_states(
    stack: ExitStack, tmp_path: Path, name: str, kinds: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    """Of one token, in the order of `VARIANTS`."""
    model = by_name(name)
    runners = [
        load_hip(
            stack,
            write_states(with_layers(model, kinds[:count]), tmp_path, "q8_0", of_experts=True),
            OPTIONS,
        )
        for count in (len(kinds) - 1, len(kinds))
    ]
    found = added(runners, tuple(VARIANTS), (1,))
    assert found == dict(zip(VARIANTS, expected, strict=True))


@pytest.mark.parametrize("head_dim", [64, 80])
def test_layers_with_experts_give_the_same_bits(
    stack: ExitStack, tmp_path: Path, head_dim: int
) -> None:
    """The norm before a router is made with it, from a product that is made before.

    Attention norms heads of 64 behind rope; those of 80 are normed before it.
    """
    model = fitting(by_name("hunyuan-moe"))
    sizes = {"attention.key_length": head_dim, "attention.value_length": head_dim}
    model = replace(model, config=model.config | {"head_dim": head_dim}, keys=model.keys | sizes)
    path = write_quantized(model, "q8_0", tmp_path, {"ffn_gate_inp": "f32"})
    runner, found = load_hip(stack, path, OPTIONS), []
    driver = prompted(runner, 4)
    for variant in ("plain", "fewest"):
        runner.variants = StepVariants.always(variant)
        found.append(list(map(bits, results(driver))))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3moe", "dots1", "gemma4-moe"])
def test_norms_add_up_the_splits_of_products(
    stack: ExitStack, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more rows than GEMV and routers' launches take: fewer launches, and the same bits."""
    multiply, found, launches = GemmKernels.multiply, [], []
    for leaves in (True, False):
        if not leaves:
            monkeypatch.setattr(
                GemmKernels,
                "multiply",
                lambda self, *args, leaves_splits=False, **rest: multiply(self, *args, **rest),
            )
        options = replace(OPTIONS, max_sequences=20, kv_blocks=48)
        # Rows of 512 are the shortest that are split.
        sizes = {"num_attention_heads": 8, "intermediate_size": 512}
        runner = runner_of(stack, tmp_path, name, 3, options, **sizes)
        output = decodes(prompted(runner, 20), 20)
        assert output.cost is not None
        found.append(bits(output))
        launches.append(output.cost.launches)
    assert found[0] == found[1]
    assert launches[0] < launches[1]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("qwen3moe", 3),
        # On some devices, pairs of decodes with the same expert share what is read of it.
        ("qwen3moe, experts in MXFP4", 3),
        # Its first layer is dense; a shared expert as large as the others is one of them.
        ("glm4moe", 2),
    ],
)
def test_norms_add_up_what_experts_made(
    stack: ExitStack, tmp_path: Path, name: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of decodes and a prompt: a launch less in each layer with experts, and the same bits."""
    options = replace(OPTIONS, max_sequences=16, max_batched_tokens=40, kv_blocks=48)
    found, launches = [], []
    every = [Want(token=row, num_logprobs=0) for row in range(len(PROMPT))]
    for leaves in (True, False):
        if not leaves:
            monkeypatch.setattr(ExpertLayers, "_adds_and_norms", lambda *_: False)
        driver = prompted(runner_of(stack, tmp_path, name, 3, options), 16)
        outputs = [decodes(driver, count) for count in (8, 16)]
        outputs.append(driver.run(Chunk(tokens=PROMPT, blocks=[1, 2], wants=every)))
        launches.append([output.cost.launches for output in outputs if output.cost is not None])
        found.append(list(map(bits, outputs)))
    assert len(found[0]) == len(launches[0]) == 3
    assert found[0] == found[1]
    assert [more - less for less, more in zip(*launches, strict=True)] == [layers] * 3
