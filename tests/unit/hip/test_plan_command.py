"""`rocmforge inspect --plan`: the plan of a device that is here, or of one that is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.backend.protocol import DeviceInfo
from rocmforge.cli import main
from rocmforge.errors import ConfigurationError
from rocmforge.gguf.synthetic import write_synthetic_model
from rocmforge.opening import open_checkpoint
from rocmforge.sizes import parse_size
from rocmforge_hip.device.discovery import FoundDevice
from rocmforge_hip.device.driver import DeviceProperties
from tests.api import tiny
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.data.models.text.tiny_recurrent import larger_liquid
from tests.data.models.towers.tiny_towers import SMOLVLM
from tests.data.models.towers.tower_files import write_tower_folder
from tests.support.models.hip import fitting
from tests.support.models.predicting import write_predicting
from tests.support.models.speaking import write_speaking

MIB, GIB = 1 << 20, 1 << 30
SEQUENCE_BYTES = 512 * 2 * 2 * 2 * 64 * 2  # tokens, layers, keys and values, heads, elements, bytes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "model.gguf"
    write_synthetic_model(path)
    return path


def plan(capsys: pytest.CaptureFixture[str], model: Path, *flags: str) -> dict[str, Any]:
    """The plan as JSON; it must have been possible."""
    assert main(["inspect", str(model), "--plan", "--json", *flags]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_stated_memory_needs_no_device(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--backend", "hip", "--memory", "24GiB", "--max-sequences", "4")
    found = plan(capsys, model, *flags)
    estimate = found["estimate"]
    assert (estimate["free"], estimate["allowed"]) == (24 * GIB, int(24 * GIB * 0.9))
    assert estimate["kv_block"] * 512 / estimate["block_size"] == SEQUENCE_BYTES
    assert found["kv_bytes"] == 4 * SEQUENCE_BYTES
    assert found["fits"]
    left = estimate["allowed"] - estimate["weights"] - estimate["activations"]
    assert found["most_sequences"] == left // SEQUENCE_BYTES
    assert found["longest_context"] == 512, "the model's own limit"
    assert model.stat().st_size * 0.9 < estimate["weights"] < model.stat().st_size * 1.1


def test_experts_are_planned_as_they_lie_in_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(fitting(by_name("qwen3moe")), tmp_path)
    estimate = plan(capsys, path, "--backend", "hip", "--memory", "24GiB")["estimate"]
    # Float32 as in the file, but for rows of padding: both tables have 97 of 128.
    padding = 2 * 31 * 64 * 4
    with open_checkpoint(path) as checkpoint:
        stored = sum(tensor.nbytes for tensor in checkpoint.weights.values())
    assert estimate["weights"] == stored + padding


def test_a_predictor_is_planned_where_it_has_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_predicting(fitting(by_name("glm4moe")), tmp_path / "m.gguf")
    asked = ("--backend", "hip", "--memory")
    alone = plan(capsys, path, *asked, "24GiB", "--draft-model", "none")["estimate"]
    found = plan(capsys, path, *asked, "24GiB")
    both, part = found["estimate"], found["draft"]
    assert found["predicts"]
    for name in ("weights", "activations", "kv_block"):
        assert both[name] - alone[name] == part[name] > 0
    assert part["kv_block"] < both["kv_block"] / 2

    needed = both["weights"] + both["activations"]
    needed += -(-both["context"] // both["block_size"]) * both["kv_block"]
    little = str(int(needed / 0.9) + 1)
    found = plan(capsys, path, *asked, little)
    assert found["lacks_room_for_predictor"]
    assert not found["predicts"]
    assert found["estimate"]["weights"] == alone["weights"]
    assert plan(capsys, path, *asked, little, "--draft-model", "mtp")["predicts"]


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    tiny = fitting(by_name("qwen3moe"))
    config = {"num_experts": 64, "moe_intermediate_size": 512}
    keys = {"expert_count": 64, "expert_feed_forward_length": 512}
    larger = replace(tiny, config=tiny.config | config, keys=tiny.keys | keys)
    return write_model(larger, tmp_path)


def test_a_share_of_the_experts_is_planned_and_said(
    experts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--backend", "hip", "--memory", "24GiB")
    whole = plan(capsys, experts, *flags)["estimate"]
    half = plan(capsys, experts, *flags, "--device-experts", "0.5")["estimate"]
    hosted = half["hosted"]
    assert whole["hosted"] is None
    assert (hosted["seats"], hosted["experts"]) == (32, 64)
    table = 2 * 2 * 64 * 8  # of two matrices in each of two layers
    assert whole["weights"] - half["weights"] == hosted["host"] // 2 - table
    assert hosted["token_bytes"] == hosted["host"] // 2 * 3 // 64, "three of 64 are chosen"
    assert main(["inspect", str(experts), "--plan", *flags, "--device-experts", "0.5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "experts 32 of 64 of each layer have a seat on the device" in shown
    assert "PCIe 4.0 x16" in shown


def test_experts_leave_a_device_only_if_they_do_not_fit_with_the_least_context(
    experts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--backend", "hip", "--max-context", "64", "--max-sequences", "1")
    whole = plan(capsys, experts, *flags, "--memory", "24GiB")
    needed = sum(whole["estimate"][name] for name in ("weights", "activations"))
    needed += whole["kv_bytes"]
    fits = plan(capsys, experts, *flags, "--memory", str(int(needed / 0.9) + 4096))
    assert fits["estimate"]["hosted"] is None
    less = plan(capsys, experts, *flags, "--memory", str(int(needed / 0.9 * 0.8)))
    estimate, hosted = less["estimate"], less["estimate"]["hosted"]
    assert 0 < hosted["seats"] < 64
    left = estimate["allowed"] - estimate["weights"] - estimate["activations"] - less["kv_bytes"]
    assert 0 <= left < hosted["host"] // 64, "experts have what one sequence leaves"


def test_what_is_no_expert_must_fit(experts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--plan", "--backend", "hip", "--max-context", "64", "--memory", "1MiB")
    assert main(["inspect", str(experts), *flags]) == 1
    assert "weights and activations alone do not fit" in " ".join(capsys.readouterr().out.split())


def test_a_model_without_experts_has_no_share_of_them(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--backend", "hip", "--memory", "24GiB", "--device-experts", "0.5")
    assert main(["inspect", str(model), "--plan", *flags]) == 2
    assert "The model has no experts" in capsys.readouterr().err


def test_context_and_users_are_what_was_asked_for(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--backend", "hip", "--memory", "24GiB", "--max-context", "128")
    one = plan(capsys, model, *flags, "--max-sequences", "1")
    many = plan(capsys, model, *flags, "--max-sequences", "100")
    assert one["kv_bytes"] == SEQUENCE_BYTES // 4
    assert many["kv_bytes"] == 100 * one["kv_bytes"]
    assert many["estimate"]["activations"] > one["estimate"]["activations"]
    int8 = plan(capsys, model, *flags, "--max-sequences", "1", "--kv-dtype", "int8")
    assert int8["kv_bytes"] == one["kv_bytes"] // 2 * (1 + 4 / 64), "a scale for each row of 64"


def test_without_a_stated_context_it_is_the_longest_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = 131_072
    tiny = fitting(by_name("llama"))
    longer = {"max_position_embeddings": trained}
    path = write_model(replace(tiny, config=tiny.config | longer), tmp_path)
    flags = ("--backend", "hip", "--max-sequences", "4")
    whole = plan(capsys, path, *flags, "--memory", "24GiB")
    assert whole["estimate"]["context"] == whole["trained_context"] == trained
    needed = whole["estimate"]["activations"] + whole["estimate"]["weights"]
    memory = str(int((needed + trained / 64 * whole["estimate"]["kv_block"]) / 0.9))
    found = plan(capsys, path, *flags, "--memory", memory)
    context = found["estimate"]["context"]
    assert 16_384 < context < trained
    assert found["most_sequences"] == 1
    assert found["longest_context"] < context + 1024, "no longer one would fit"
    told = main(["inspect", str(path), "--plan", *flags, "--memory", memory])
    shown = " ".join(capsys.readouterr().out.split())
    assert told == 0
    assert f"context {context} tokens, as many as fit; the model was trained for {trained}" in shown
    stated = ("--memory", memory, "--max-context", str(trained))
    assert main(["inspect", str(path), "--plan", *flags, *stated]) == 1
    assert "not even one sequence fits" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> DeviceProperties:
    """A device that is here, with 2 of 24 GiB free."""
    properties = DeviceProperties(
        index=0,
        name="Radeon RX 7900 XTX",
        target="gfx1100",
        wave_size=32,
        compute_units=96,
        memory_total=24 * GIB,
        is_integrated=False,
        pci_id="0000:03:00.0",
    )
    info = DeviceInfo(
        index=0, name=properties.name, target="gfx1100", memory_total=24 * GIB, memory_free=2 * GIB
    )
    devices = (FoundDevice(properties, info),)
    monkeypatch.setattr("rocmforge_hip.backend.find_devices", lambda platform: devices)
    return properties


def test_the_device_that_is_here_is_looked_at(
    model: Path, card: DeviceProperties, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(capsys, model, "--max-sequences", "8")
    assert found["estimate"]["device"] == card.name
    assert found["estimate"]["free"] == 2 * GIB


def test_experts_that_the_host_has_no_room_for_do_not_fit(
    experts: Path,
    card: DeviceProperties,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = ("--device-experts", "0.5", "--max-sequences", "1")
    hosted = plan(capsys, experts, *flags)["estimate"]["hosted"]
    assert hosted["host_free"] > hosted["host"]
    free = hosted["host"] - 3 * MIB
    monkeypatch.setattr("rocmforge_hip.backend.host_memory", lambda: (64 * GIB, free))
    assert main(["inspect", str(experts), "--plan", *flags]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "no: the host lacks 3.0 MiB for the experts" in shown


def test_a_table_of_embeddings_is_of_the_hosts_memory(
    tmp_path: Path,
    card: DeviceProperties,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_model(fitting(by_name("gemma4-e")), tmp_path)
    with open_checkpoint(path) as checkpoint:
        table = checkpoint.weights["embedding.per_layer"]
        others = sum(each.nbytes for each in checkpoint.weights.values()) - table.nbytes
    flags = ["inspect", str(path), "--plan", "--max-sequences", "1"]
    estimate = plan(capsys, path, "--max-sequences", "1")["estimate"]
    padding = 31  # rows of tables of 97, which have 128
    assert estimate["host_table"] == table.nbytes // 97 * 128
    assert estimate["weights"] == others + padding * 64 * 4
    monkeypatch.setattr("rocmforge_hip.backend.host_memory", lambda: (GIB, 96 * 1024))
    assert main(flags) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "embeddings 96.0 KiB of the host: of each layer, read by rows" in shown
    monkeypatch.setattr("rocmforge_hip.backend.host_memory", lambda: (GIB, 95 * 1024))
    assert main(flags) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "no: the host lacks 1.0 KiB for the embeddings" in shown


def test_what_does_not_fit_is_said_and_is_status_1(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--plan", "--backend", "hip", "--memory", "8MiB"]
    assert main(["inspect", str(model), *flags]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "not even one sequence fits" in shown
    assert "weights and activations alone do not fit" in shown


def test_a_cache_for_some_of_the_users_is_possible_and_said(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--plan", "--backend", "hip", "--memory", "1G", "--max-sequences", "2000"]
    assert main(["inspect", str(model), *flags]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "are missing; sequences beyond that would wait" in shown


def test_without_a_device_the_memory_must_be_stated(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocmforge_hip.backend.find_devices", lambda platform: ())
    assert main(["inspect", str(model), "--plan"]) == 2
    assert "such as --memory 24GiB" in capsys.readouterr().err


def test_a_backend_that_cannot_plan_says_so(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--plan", "--backend", "reference", "--memory", "1G"]
    assert main(["inspect", str(model), *flags]) == 2
    assert "'reference' does not plan its memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GIB), ("24g", 24 * GIB), ("1.5 MB", 3 * MIB // 2), ("1000", 1000)],
)
def test_sizes_have_units_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1.G", "24 GiBs"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a size"):
        parse_size(text)


def test_states_are_planned_beside_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(larger_liquid(by_name("lfm2")), tmp_path)
    flags = (
        "--backend",
        "hip",
        "--memory",
        "1GiB",
        "--state-snapshots",
        "0",
        "--max-sequences",
        "4",
    )
    estimate = plan(capsys, model, *flags)["estimate"]
    assert estimate["states"] == 4 * 2 * 2 * 128 * 4, "sequences, layers, inputs, channels, bytes"
    most = plan(capsys, model, *flags[:-1], "400")["estimate"]
    assert most["states"] == 100 * estimate["states"]
    assert main(["inspect", str(model), "--plan", *flags]) == 0
    assert "states 8.0 KiB of all sequences" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "snapshots"),
    [(("--state-snapshots", "5"), 5), ((), 64)],
)
def test_snapshots_of_states_are_planned(
    flags: tuple[str, ...], snapshots: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(larger_liquid(by_name("lfm2")), tmp_path)
    general = ("--backend", "hip", "--max-sequences", "4", "--memory", "1GiB", *flags)
    estimate = plan(capsys, model, *general)["estimate"]
    assert estimate["snapshots"] == snapshots
    assert estimate["states"] == (4 + snapshots) * 2 * 2 * 128 * 4
    main(["inspect", str(model), "--plan", *general])
    assert f"of all sequences and {snapshots} snapshots" in " ".join(
        capsys.readouterr().out.split()
    )


def test_the_hosts_cache_is_planned_in_blocks_and_tokens(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--backend", "hip", "--memory", "24GiB", "--host-cache", "1GiB")
    estimate = plan(capsys, model, *flags)["estimate"]
    blocks = GIB // estimate["kv_block"]
    assert main(["inspect", str(model), "--plan", *flags]) == 0
    assert f"{blocks:,} blocks, {blocks * estimate['block_size']:,} tokens" in " ".join(
        capsys.readouterr().out.split()
    )


def test_layers_with_a_window_leave_room_for_longer_contexts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of seven layers keeps everything; the others take as much as a window and a step."""
    model = fitting(by_name("gemma3"))
    longer = model.config | {"max_position_embeddings": 32768}
    path = write_model(replace(model, config=longer), tmp_path)
    wide = model.keys | {"attention.sliding_window": 32768}
    seeing_all = write_model(replace(model, config=longer, keys=wide, name="wide"), tmp_path)
    flags = ("--backend", "hip", "--memory", "256MiB", "--max-batched-tokens", "256")
    releasing = plan(capsys, path, *flags, "--host-cache", "1GiB")
    keeping = plan(capsys, seeing_all, *flags)
    assert releasing["estimate"]["window_groups"] == 6
    assert releasing["estimate"]["kv_block"] * 7 == keeping["estimate"]["kv_block"]
    assert releasing["most_sequences"] > 6 * keeping["most_sequences"] > 0
    assert main(["inspect", str(path), "--plan", *flags]) == 0
    assert "a window of 7 tokens" in capsys.readouterr().out


def test_a_tower_is_planned_beside_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--backend", "hip", "--memory", "24GiB")
    whole = plan(capsys, write_tower_folder(SMOLVLM, tmp_path / "whole"), *flags)
    config = {"vision_config": None}
    text = plan(capsys, write_tower_folder(SMOLVLM, tmp_path / "text", **config), *flags)
    assert text["tower"] is None
    for part in ("weights", "activations"):
        assert whole["tower"][part] > 0
        assert whole["estimate"][part] == text["estimate"][part] + whole["tower"][part]
    main(["inspect", str(tmp_path / "whole")])
    shown = capsys.readouterr().out
    assert "tiles of 64 x 64 pixels, 16 tokens each; a tower of 2 layers" in " ".join(shown.split())


def test_a_draft_model_of_another_vocabulary_is_refused_as_by_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "draft").mkdir()
    model = write_speaking(tmp_path, "llama")
    tokens = ["other", *tiny.metadata()["tokenizer.ggml.tokens"][1:]]
    draft = write_speaking(tmp_path / "draft", "llama", {"tokenizer.ggml.tokens": tokens})
    flags = ("--backend", "hip", "--memory", "1GiB", "--draft-model")
    assert main(["inspect", str(model), "--plan", *flags, str(draft)]) == 2
    assert "has another vocabulary: its token 0 is 'other'" in capsys.readouterr().err
