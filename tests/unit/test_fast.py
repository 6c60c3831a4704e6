"""`just fast` runs every file once, and fails if one of its processes does."""

from __future__ import annotations

import pytest

from tests.fast import deal, status_of


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_file_is_in_one_part_and_parts_are_about_as_large(count: int) -> None:
    sizes = {f"test_{size}.py": size for size in range(1, 40)}
    parts = deal(sizes, count)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    shares = [sum(sizes[name] for name in part) for part in parts]
    assert max(shares) - min(shares) <= 39


def test_no_part_is_empty() -> None:
    assert deal({"test_a.py": 1}, 4) == [["test_a.py"]]


@pytest.mark.parametrize(
    ("statuses", "status"), [([0, 0], 0), ([0, 1], 1), ([5, 0], 0), ([5, 5], 5), ([1, 2], 2)]
)
def test_parts_without_tests_say_nothing(statuses: list[int], status: int) -> None:
    assert status_of(statuses) == status
