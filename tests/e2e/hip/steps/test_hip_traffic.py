"""What the HIP backend says a step cost: bytes, launches, time between steps, bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.backend.step import StepCost
from rocmforge_hip.backend import create
from rocmforge_hip.device.driver import Driver as HipDriver
from rocmforge_hip.device.memory import DeviceBuffer, spec
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.traffic import copy_bandwidth
from tests.backend.driving import Chunk, Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import HEAD_DIM, fitting
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

OPTIONS = replace(SMALL, max_batched_tokens=64, kv_blocks=8, kv_dtype="f16")
PROMPT = range(5, 25)


class Costs:
    """A tiny model that says what its steps cost."""

    def __init__(self, name: str, folder: Path) -> None:
        model = fitting(by_name(name))
        runner = load_file(create(), write_model(model, folder), OPTIONS)
        assert isinstance(runner, HipRunner)
        self.runner = runner
        self.config = model.config
        self._driver = Driver(runner)

    def run(self, *chunks: Chunk) -> StepCost:
        """One step."""
        cost = self._driver.run(*chunks).cost
        assert cost is not None
        return cost

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token in one layer, as halves."""
        return 2 * 2 * int(self.config["num_key_value_heads"]) * HEAD_DIM


@pytest.fixture
def llama(host: HostPlatform | None, tmp_path: Path) -> Iterator[Costs]:
    costs = Costs("llama", tmp_path)
    with closing(costs.runner):
        yield costs


@pytest.fixture
def gemma3(host: HostPlatform | None, tmp_path: Path) -> Iterator[Costs]:
    costs = Costs("gemma3", tmp_path)
    with closing(costs.runner):
        yield costs


def decode(at: int, blocks: tuple[int, ...] = (1, 2)) -> Chunk:
    """One token of a sequence."""
    return Chunk(tokens=[7], start=at, blocks=blocks)


def test_a_longer_context_is_that_much_more_to_read(llama: Costs) -> None:
    llama.run(Chunk(tokens=PROMPT, blocks=[1, 2]))
    first, second = (llama.run(decode(at)).bytes_read for at in (20, 21))
    both = llama.run(decode(22), decode(0, (3,))).bytes_read
    layers = llama.config["num_hidden_layers"]
    assert second - first == layers * llama.token_bytes
    # Another sequence brings a row of the embedding and its own token.
    one_more = both - second - 2 * layers * llama.token_bytes
    assert 0 < one_more < 8 * llama.config["hidden_size"]


def test_weights_are_read_once_whatever_the_batch(llama: Costs) -> None:
    read = llama.run(decode(0)).bytes_read
    rest = llama.config["num_hidden_layers"] * llama.token_bytes
    row = 4 * llama.config["hidden_size"]
    assert read - rest <= llama.runner.info.weights_bytes + row
    assert read > llama.runner.info.weights_bytes / 2


def test_a_part_of_a_prompt_does_not_read_the_output_matrix(llama: Costs) -> None:
    whole = llama.run(Chunk(tokens=PROMPT, blocks=[1, 2])).bytes_read
    part = llama.run(Chunk(tokens=PROMPT, blocks=[1, 2], wants=())).bytes_read
    matrix = llama.config["vocab_size"] * llama.config["hidden_size"]
    assert 2 * matrix <= whole - part <= 8 * matrix


def test_layers_with_a_window_read_no_more_than_it(gemma3: Costs) -> None:
    gemma3.run(Chunk(tokens=PROMPT, blocks=[1, 2]))
    first, second = (gemma3.run(decode(at)).bytes_read for at in (20, 21))
    assert gemma3.config["num_hidden_layers"] == 7, "of which the sixth attends to everything"
    assert second - first == gemma3.token_bytes


def test_layers_read_what_others_have_stored_and_rows_of_the_hosts_table(
    host: HostPlatform | None, tmp_path: Path
) -> None:
    costs = Costs("gemma4-e", tmp_path)
    with closing(costs.runner):
        costs.run(Chunk(tokens=PROMPT, blocks=[1, 2]))
        reads = [costs.run(decode(at)).bytes_read for at in (20, 21)]
        assert reads[1] - reads[0] == 2 * 2 * costs.token_bytes, (
            "heads of 128, in two of six layers"
        )
        # Without the table, which is larger than a fifth of all.
        assert reads[0] < costs.runner.info.weights_bytes + 40 * 6 * costs.token_bytes


def test_a_graph_is_one_launch_behind_that_of_the_tokens_and_a_prompt_is_many(llama: Costs) -> None:
    prompt = llama.run(Chunk(tokens=PROMPT, blocks=[1, 2])).launches
    llama.run(decode(20))  # records the graph
    assert llama.run(decode(21)).launches == 2
    assert prompt > 5 * llama.config["num_hidden_layers"]


def test_gaps_are_times_between_steps(llama: Costs) -> None:
    assert llama.run(decode(0)).gap_ns == 0, "no step came before"
    assert all(llama.run(decode(at)).gap_ns > 0 for at in range(1, 6))


def test_the_device_is_known_by_its_address(llama: Costs) -> None:
    (bus_id,) = llama.runner.info.bus_ids
    assert bus_id.count(":") == 2
    assert llama.runner.info.copy_bandwidth == 0.0, "a cache this small says nothing about memory"


def test_copies_say_how_fast_memory_is(host: HostPlatform | None) -> None:
    driver = HipDriver(0)
    stream = driver.create_stream()
    # Values may be smaller than keys.
    sizes = {"a": 1 << 20, "b": 1 << 20, "c": 3 << 19, "d": 1 << 20}
    buffers = [DeviceBuffer(driver, spec((size,), "u1"), name) for name, size in sizes.items()]
    for buffer in buffers:
        buffer.fill(1, stream)
    arrays = [buffer.array for buffer in buffers]
    pairs = [(arrays[0], arrays[1]), (arrays[2], arrays[3])]
    assert copy_bandwidth(driver, stream, pairs, least=2 << 20) > 1e6
    assert copy_bandwidth(driver, stream, pairs, least=(2 << 20) + 1) == 0.0
    driver.destroy_stream(stream)
    for buffer in buffers:
        buffer.free()
