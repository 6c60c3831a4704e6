"""How many launches a layer takes in a step of decodes, and that few of them give the same bits."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.backend.protocol import StepOutput
from rocmforge_hip.ops.step import VARIANTS
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.variant_choice import StepVariants
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.tiny_gemma4 import sized_gemma4
from tests.data.models.tiny_models import PROMPT, by_name
from tests.support.hip import fitting, quantized, write_quantized
from tests.support.options import SMALL
from tests.support.runners import load_hip

OPTIONS = replace(SMALL, max_sequences=4, graphs="off", activation_bits="8")
MIX = {"attn_v": "q6_k", "ffn_down": "q6_k"}
"""As llama.cpp's Q4_K_M has it in half of the layers."""


def runner_of(stack: ExitStack, folder: Path, name: str, layers: int) -> HipRunner:
    model = quantized(by_name(name), "q4_k")
    if model.architecture == "gemma4":
        model = replace(sized_gemma4(model, num_hidden_layers=layers), name=f"{name}-{layers}")
        return load_hip(stack, write_quantized(model, "q4_k", folder, MIX), OPTIONS)
    keys = {
        key: layers if key.endswith("block_count") else value for key, value in model.keys.items()
    }
    config = model.config | {"num_hidden_layers": layers}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    model = replace(model, name=f"{model.name}-{layers}", config=config, keys=keys)
    return load_hip(stack, write_quantized(model, "q4_k", folder, MIX), OPTIONS)


def results(runner: HipRunner) -> list[StepOutput]:
    """Steps of one, two and four sequences after a prompt.

    On NVIDIA GPUs four go through int8 matrix instructions, which no variant changes.
    """
    driver = Driver(runner)
    found = []
    for count in (1, 2) if runner.info.device.target.startswith("sm_") else (1, 2, 4):
        for row in range(count):
            driver.run(Chunk(tokens=PROMPT[: 5 + row], blocks=[1 + row]))
        wants = (Want(num_logprobs=0),)
        found.append(
            driver.run(
                *(
                    Chunk(tokens=[7 + row], start=5 + row, blocks=[1 + row], wants=wants)
                    for row in range(count)
                )
            )
        )
    return found


@pytest.mark.parametrize(
    ("name", "layer", "expected"),
    [
        ("llama", 1, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5}),
        ("qwen3", 1, {"plain": 10, "fused": 8, "rounded": 7, "fewest": 5}),
        ("gemma3", 1, {"plain": 12, "fused": 10, "rounded": 9, "fewest": 5}),
        ("gemma4", 1, {"plain": 12, "fused": 10, "rounded": 9, "fewest": 5}),
        # Heads of 512 leave no registers to rotate in attention.
        ("gemma4", 2, {"plain": 12, "fused": 11, "rounded": 10, "fewest": 6}),
        # Three of them are of the other embedding; the last layer reads another's cache.
        ("gemma4-e", 1, {"plain": 17, "fused": 15, "rounded": 14, "fewest": 8}),
        ("gemma4-e", 4, {"plain": 17, "fused": 15, "rounded": 14, "fewest": 8}),
    ],
)
def test_launches_of_a_layer(
    stack: ExitStack, tmp_path: Path, name: str, layer: int, expected: dict[str, int]
) -> None:
    one, two = (runner_of(stack, tmp_path, name, layers) for layers in (layer, layer + 1))
    launches, bits = {}, {}
    for variant in VARIANTS:
        counts = []
        for runner in (one, two):
            runner.variants = StepVariants.always(variant)
            outputs = results(runner)
            counts.append([output.cost.launches for output in outputs if output.cost is not None])
        (launches[variant],) = {more - less for less, more in zip(*counts, strict=True)}
        bits[variant] = [
            (output.token_ids.tobytes(), output.logprobs.tobytes())
            for output in outputs
            if output.logprobs is not None
        ]
    assert launches == expected
    assert all(each == bits["plain"] for each in bits.values())


def test_layers_with_experts_give_the_same_bits(stack: ExitStack, tmp_path: Path) -> None:
    """The norm before a router is made with it, from a product that is made before."""
    model = fitting(by_name("hunyuan-moe"))
    path = write_quantized(model, "q8_0", tmp_path, {"ffn_gate_inp": "f32"})
    runner, found = load_hip(stack, path, OPTIONS), []
    for variant in ("plain", "fewest"):
        runner.variants = StepVariants.always(variant)
        found.append(
            [
                (output.token_ids.tobytes(), output.logprobs.tobytes())
                for output in results(runner)
                if output.logprobs is not None
            ]
        )
    assert found[0] == found[1]
