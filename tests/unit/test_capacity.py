"""The page of capacity: its models are the real ones, and its numbers those of the planner."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools.capacity_page import CONTEXTS, MOST, ModelPlan, plan_shape
from docs.tools.model_shapes import read_shapes, write_header
from rocmforge.commands.plan import plan_model
from rocmforge.engine_options import load_options
from rocmforge.library.catalogue import read_catalogue
from rocmforge.opening import describe
from rocmforge.settings import Settings
from rocmforge_hip.backend import create
from tests.backend.driving import Chunk, make_step
from tests.support.models.loading import estimate_file

GIB = 1 << 30
SHAPES = read_shapes()
STATED = read_catalogue()
# Of every kind: full attention, windows, states.
CELLS = (
    ("llama-3.1-8b", 24, 4096, "f16"),
    ("gpt-oss-20b", 24, 16384, "int8"),
    ("gemma-3-27b", 48, 32768, "f16"),
    ("llama-3.1-8b", 48, 16384, "k8v4"),
    ("qwen3.6-35b-a3b", 48, 4096, "int8"),
)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelPlan]:
    folder = tmp_path_factory.mktemp("shapes")
    return {name: plan_shape(name, SHAPES[name], folder) for name, *_ in CELLS}


def test_files_are_as_large_as_their_publishers_say(tmp_path: Path) -> None:
    compared = [name for name in SHAPES if name in STATED]
    assert len(compared) >= 10
    for name in compared:
        path = tmp_path / f"{name}.gguf"
        write_header(path, SHAPES[name])
        stated = STATED[name].gigabytes[SHAPES[name].quantisation]
        # That of GLM has a predictor, too.
        assert path.stat().st_size / 1e9 == pytest.approx(stated, rel=0.022), name
        assert path.stat().st_blocks * 512 < 10 << 20, "a hole"
        assert describe(path).architecture == STATED[name].architecture


@pytest.mark.parametrize(("name", "gibibytes", "context", "kv_dtype"), CELLS)
def test_a_cell_is_what_the_planner_says(
    plans: dict[str, ModelPlan], name: str, gibibytes: int, context: int, kv_dtype: str
) -> None:
    count = plans[name].sequences(gibibytes * GIB, context, kv_dtype)
    assert 1 < count < MOST

    def fits(sequences: int) -> bool:
        settings = Settings(
            max_context=context,
            max_sequences=sequences,
            kv_dtype=kv_dtype,  # type: ignore[arg-type]
            device_experts=1.0,
        )
        options = load_options(settings, SHAPES[name].context, causal=True)
        found = estimate_file(create(), plans[name].path, options, gibibytes * GIB)
        return found.left_for_kv >= sequences * found.kv_sequence

    assert (fits(count), fits(count + 1)) == (True, False)


def test_inspect_tells_the_same(plans: dict[str, ModelPlan]) -> None:
    plan = plans["qwen3.6-35b-a3b"]
    settings = Settings(backend="hip", kv_dtype="f16")
    room = plan_model(plan.path, settings, 32 * GIB).room
    assert room == {context: plan.sequences(32 * GIB, context, "f16") for context in CONTEXTS}


def test_reads_of_a_decode_are_those_of_such_a_step(plans: dict[str, ModelPlan]) -> None:
    reads = plans["gpt-oss-20b"].reads
    chunks = [Chunk(tokens=[3], start=299, blocks=range(10 * n, 10 * n + 10)) for n in range(4)]
    assert reads.of_decode(4, 300) == reads.of(make_step(0, chunks, 32))
    one_token = 24 // 2 * 2 * 8 * 64 * 2  # of the layers without a window
    assert reads.of_decode(1, 10_001) - reads.of_decode(1, 10_000) == one_token
