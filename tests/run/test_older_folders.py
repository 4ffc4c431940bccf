"""Run folders that version 1 wrote are read as those of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfkit._location import Location
from perfkit.run.reading import RankFolder, read_run

CALLED = ["train.py", 49, "<module>"]
LINES = {
    "period_ns": 5_000_000,
    "steps": 40,
    "rows": [
        {
            "file": "model.py",
            "line": 43,
            "function": "main",
            "owner": "user",
            "phase": "backward",
            "samples": 18,
            "host_ns": 1_458_625,
            "worker": None,
            "within": {"torch._tensor > torch.autograd": 18},
            "called_from": CALLED,
        },
        {
            "file": "json/decoder.py",
            "line": 7,
            "function": "decode",
            "owner": "json",
            "phase": "data",
            "samples": 1,
            "host_ns": 9,
            "called_from": None,
        },
    ],
    "traced": [
        {
            "file": "model.py",
            "line": 30,
            "function": "Layer.forward",
            "owner": "user",
            "phase": "forward",
            "runs": 6,
            "host_ns": 27_941,
            "loop_line": None,
            "before_model": False,
            "modules": [],
            "callers": [CALLED, ["train.py", 40, "main"]],
        }
    ],
}
RANK = {
    "schema": 1,
    "rank": 0,
    "launch_id": "a",
    "host": "h",
    "pid": 1,
    "start_ns": 0,
    "break_lines": [{"reason": "print", "file": "model.py", "line": 24, "function": "forward", "count": 3}],
    "compilations": [
        {
            "compiled": "forward",
            "file": "train.py",
            "line": 49,
            "function": "<module>",
            "count": 4,
            "recompiles": 3,
            "total_ns": 8,
            "reason": None,
        },
        {"compiled": "f", "file": None, "line": None, "function": None, "count": 1, "recompiles": 0, "total_ns": 8},
    ],
    "calls": {"manual_seed": [{"file": "train.py", "line": 3, "function": None}]},
}


def written(folder: Path, **files: Any) -> RankFolder:
    rank = folder / "rank-0"
    rank.mkdir()
    for name, content in files.items():
        (rank / f"{name}.json").write_text(json.dumps(content))
    row = {"step": 0, "start_ns": 0, "wall_ns": 5, "phases_ns": {"forward": 5}}
    (rank / "steps.jsonl").write_text(json.dumps(row) + "\n")
    return read_run(folder).ranks[0]


def test_places_written_as_arrays_are_locations(tmp_path: Path) -> None:
    rank = written(tmp_path, lines=LINES)

    assert rank.lines is not None
    assert not rank.lost
    called = Location(file="train.py", line=49, function="<module>")
    assert [row.called_from for row in rank.lines.rows] == [called, None]
    assert rank.lines.rows[1].owner == "json"
    assert rank.lines.traced[0].callers == (called, Location(file="train.py", line=40, function="main"))


def test_the_caller_of_what_was_compiled_is_a_location_where_it_is_known(tmp_path: Path) -> None:
    record = written(tmp_path, rank=RANK).rank

    assert record is not None
    called = Location(file="train.py", line=49, function="<module>")
    assert [one.called_from for one in record.compilations] == [called, None]
    assert record.break_lines[0].at == Location(file="model.py", line=24, function="forward")
    assert record.calls["manual_seed"] == (Location(file="train.py", line=3),)


def test_a_damaged_record_of_an_older_folder_is_reported_as_damaged(tmp_path: Path) -> None:
    rank = written(tmp_path, lines=LINES | {"rows": [{"called_from": ["train.py"]}], "traced": "none"}, rank=[])

    assert (rank.lines, rank.rank) == (None, None)
    assert [text.split(" (")[0] for text in rank.lost] == ["rank-0/lines.json: damaged", "rank-0/rank.json: damaged"]


def test_flags_of_a_step_are_the_kind_of_step_that_they_meant(tmp_path: Path) -> None:
    rank = written(tmp_path)
    usual = {"wall_ns": 5, "phases_ns": {"forward": 5}}
    flags: list[dict[str, Any]] = [{}, {"window": 0}, {"window": 0, "extra": True}, {"dry": True}, {"window": "x"}]
    rows = [json.dumps({"step": step, "start_ns": step, **usual, **more}) for step, more in enumerate(flags)]
    (rank.folder / "steps.jsonl").write_text("\n".join([*rows, '["dry"]', ""]))

    steps = RankFolder(rank.folder, 0).steps

    assert [(row.kind, row.window) for row in steps] == [("timed", None), ("window", 0), ("lines", 0), ("dry", None)]
