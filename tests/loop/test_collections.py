"""A full garbage collection is booked on the user's line in which it began."""

from __future__ import annotations

import gc
from pathlib import Path

import msgspec

import perfkit
from perfkit.run.records import Lines


def test_full_collections_are_told_with_their_line_and_young_ones_are_not(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "run", schedule=None, quiet=True) as prof:
        for _ in prof.steps(range(4)):
            gc.collect(0)
            gc.collect()

    lines = msgspec.json.decode((tmp_path / "run" / "rank-0" / "lines.json").read_bytes(), type=Lines)
    source = Path(__file__).read_text().splitlines()
    mine = {source[row.line - 1].strip(): row for row in lines.collected if row.file == __file__}

    assert mine["gc.collect()"].count == 4
    assert mine["gc.collect()"].total_ns > 0
    assert "gc.collect(0)" not in mine
