"""benchmarks/soak_states.py works; its twenty minutes are for people."""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak_states import run


def test_a_second_of_streams_leaves_nothing_behind(tmp_path: Path) -> None:
    found = run(tmp_path, seconds=1)
    assert found.requests > 32, "streams end, and others begin"
    assert found.stats.totals.prefix_hit_tokens > 0
