"""Whose a device's memory is, on a machine and within a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmforge.sensors.memory import (
    all_holders,
    compute_holders,
    descends_from,
    others_bytes,
    pci_address,
)
from tests.support.files.device_tree import GIB, DeviceTree

SERVER, ENGINE, RANK, LLAMA, XORG = 100, 110, 111, 4711, 900


@pytest.fixture
def tree(tmp_path: Path) -> DeviceTree:
    """A server, with an engine of two ranks, beside another program and a desktop."""
    tree = DeviceTree(tmp_path)
    tree.process(SERVER, "rocmforge")
    tree.compute(ENGINE, "python3", 6 * GIB, parent=SERVER)
    tree.compute(RANK, "python3", 5 * GIB, parent=ENGINE)
    tree.compute(LLAMA, "llama-server", 9 * GIB)
    tree.draw(XORG, "Xorg", 512 << 10)
    return tree


def in_container(tree: DeviceTree) -> None:
    (tree.root / "proc/self/ns/pid").unlink()
    (tree.root / "proc/self/ns/pid").symlink_to("pid:[4026533001]")


def test_processes_are_named_with_what_they_hold(tree: DeviceTree) -> None:
    computing = [(h.pid, h.name, h.nbytes, h.device) for h in compute_holders(tree.root)]
    assert computing == [
        (LLAMA, "llama-server", 9 * GIB, tree.device),
        (ENGINE, "python3", 6 * GIB, tree.device),
        (RANK, "python3", 5 * GIB, tree.device),
    ]
    (drawing,) = (h for h in all_holders(tree.root) if h.pid == XORG)
    assert (drawing.name, drawing.nbytes) == ("Xorg", GIB // 2), "both descriptors are one client"


def test_several_clients_of_a_process_add_up(tree: DeviceTree) -> None:
    tree.draw(901, "firefox", 1024, clients=(3, 4))
    (found,) = (h for h in all_holders(tree.root) if h.name == "firefox")
    assert found.nbytes == 2 * 1024 * 1024


def test_the_memory_of_others_leaves_out_the_servers_children(tree: DeviceTree) -> None:
    assert others_bytes(tree.root, tree.device, 21 * GIB, {SERVER}) == 10 * GIB
    assert others_bytes(tree.root, tree.device, 21 * GIB, ()) == 21 * GIB
    assert others_bytes(tree.root, "0000:43:00.0", 3 * GIB, {SERVER}) == 3 * GIB


def test_in_a_container_no_process_is_named_by_another_ones_number(tree: DeviceTree) -> None:
    in_container(tree)
    assert {h.name for h in all_holders(tree.root)} == {None}
    assert others_bytes(tree.root, tree.device, 21 * GIB, {SERVER}) is None, "whose is what?"


def test_in_a_container_the_servers_open_files_say_what_is_its_own(tree: DeviceTree) -> None:
    in_container(tree)
    tree.draw(7, "python3", 6 << 20)
    tree.process(7, "python3", parent=1)
    assert others_bytes(tree.root, tree.device, 21 * GIB, {1}) == 15 * GIB - GIB // 2


def test_a_name_in_stat_may_look_like_anything(tree: DeviceTree) -> None:
    tree.process(50, "a) S 1 (b", parent=SERVER)
    assert descends_from(tree.root, 50, {SERVER})
    assert not descends_from(tree.root, 51, {SERVER})


def test_parents_that_go_in_a_circle_come_to_an_end(tree: DeviceTree) -> None:
    tree.process(60, "a", parent=61)
    tree.process(61, "b", parent=60)
    assert not descends_from(tree.root, 60, {SERVER})


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (f"sys/class/kfd/kfd/proc/{LLAMA}/vram_40000", "many"),
        (f"sys/class/kfd/kfd/proc/{LLAMA}/vram_40000", ""),
        (f"proc/{XORG}/fdinfo/0", "drm-driver:\tamdgpu\ndrm-pdev\ndrm-memory-vram:\t-1 KiB\n"),
        (f"proc/{XORG}/comm", b"\xff\xfe\x1b[2J\n"),
        ("sys/class/kfd/kfd/topology/nodes/1/properties", "location_id\ndomain x\n\x00\n"),
        ("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "1" * 5000),
    ],
)
def test_broken_files_are_no_end(tree: DeviceTree, path: str, content: str | bytes) -> None:
    tree.write(path, content)
    for holder in all_holders(tree.root):
        assert "\x1b" not in (holder.name or "")


def test_without_any_files_there_is_nobody(tmp_path: Path) -> None:
    assert all_holders(tmp_path) == []


def test_addresses_are_those_of_lspci() -> None:
    assert pci_address(0, 0x300) == "0000:03:00.0"
    assert pci_address(2, 0xC5 << 8 | 0x1F << 3 | 7) == "0002:c5:1f.7"
