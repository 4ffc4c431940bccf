"""What the tab finds below a log directory, and that nothing else can be opened."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from perfkit.diagnosis import SCHEMA
from perfkit.integrations.tensorboard import log_directory
from perfkit.integrations.tensorboard.drawings import Drawings
from perfkit.integrations.tensorboard.log_directory import LogDirectory

SECRET = b"the file outside"


def write(path: Path, data: bytes = b"{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_runs_and_folders_with_traces_are_found_at_any_depth(tmp_path: Path) -> None:
    for name in ("a/run.json", "a/rank-0/window-10.pt.trace.json.gz", "a/rank-0/window-9.pt.trace.json.gz"):
        write(tmp_path / name)
    write(tmp_path / "b/c/host_1.123.pt.trace.json")
    write(tmp_path / "d/diagnosis.json")
    write(tmp_path / "e/events.out.tfevents.1")
    write(tmp_path / "f/.host_1.123.pt.trace.json.gz.part")

    found = LogDirectory(str(tmp_path)).scan()

    assert {run.name: (run.kind, run.traces) for run in found.runs.values()} == {
        "a": ("run", ["rank-0/window-9.pt.trace.json.gz", "rank-0/window-10.pt.trace.json.gz"]),
        "b/c": ("traces", ["host_1.123.pt.trace.json"]),
        "d": ("run", []),
    }
    assert found.notes == ()


def test_the_log_directory_itself_may_be_a_run(tmp_path: Path) -> None:
    write(tmp_path / "rank-0" / "steps.jsonl")

    assert list(LogDirectory(str(tmp_path)).scan().runs) == ["."]


def test_a_log_directory_that_is_not_there_yet_is_told_and_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_directory, "_FRESH_S", -1.0)
    directory = LogDirectory(str(tmp_path / "later"))

    assert "does not exist yet" in directory.scan().notes[0]
    write(tmp_path / "later" / "run.json")
    assert list(directory.scan().runs) == ["."]


def test_links_are_neither_followed_nor_read(tmp_path: Path) -> None:
    logs, outside = tmp_path / "logs", tmp_path / "outside"
    write(outside / "run.json")
    write(outside / "x.pt.trace.json", SECRET)
    write(logs / "run" / "run.json")
    write(logs / "run" / "rank-0" / "rank.json")
    (logs / "folder").symlink_to(outside)
    (logs / "run" / "rank-0" / "window-0.pt.trace.json").symlink_to(outside / "x.pt.trace.json")
    (logs / "run" / "rank-1").symlink_to(outside)

    (run,) = LogDirectory(str(logs)).scan().runs.values()

    assert (run.name, run.traces) == ("run", [])
    assert sorted(run.links) == ["rank-0/window-0.pt.trace.json", "rank-1"]


@pytest.mark.parametrize("swapped", ["link", "folder link", "pipe", "gone"])
def test_a_file_that_was_swapped_since_it_was_found_is_not_opened(tmp_path: Path, swapped: str) -> None:
    outside = write(tmp_path / "outside" / "x.pt.trace.json", SECRET)
    trace = write(tmp_path / "logs" / "a" / "x.pt.trace.json", b"trace")
    directory = LogDirectory(str(tmp_path / "logs"))
    found = directory.scan().runs["a"]
    with directory.open(found, "x.pt.trace.json")[0] as opened:
        assert opened.read() == b"trace"

    trace.unlink()
    if swapped == "link":
        trace.symlink_to(outside)
    elif swapped == "folder link":
        trace.parent.rmdir()
        trace.parent.symlink_to(outside.parent)
    elif swapped == "pipe":
        os.mkfifo(trace)

    with pytest.raises(OSError, match="trace"):
        directory.open(found, "x.pt.trace.json")


def test_only_what_was_found_can_be_opened(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "a" / "x.pt.trace.json")
    write(tmp_path / "outside.json", SECRET)
    directory = LogDirectory(str(tmp_path / "logs"))
    found = directory.scan().runs["a"]

    for name in ("../../outside.json", str(tmp_path / "outside.json"), "", "x.pt.trace.json/.", "./x.pt.trace.json"):
        with pytest.raises(FileNotFoundError):
            directory.open(found, name)


def test_a_scan_is_bounded_and_reports_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(8):
        write(tmp_path / f"run-{i}" / "run.json")
    monkeypatch.setattr(log_directory, "_MAX_ENTRIES", 10)

    found = LogDirectory(str(tmp_path)).scan()

    assert 0 < len(found.runs) < 8
    assert "holds too many files" in found.notes[0]


def test_a_spec_names_its_parts(tmp_path: Path) -> None:
    write(tmp_path / "x" / "run.json")
    write(tmp_path / "y" / "deep" / "run.json")

    found = LogDirectory(None, f"first:{tmp_path / 'x'},{tmp_path / 'y'}").scan()

    assert sorted(found.runs) == ["first", "y/deep"]


def test_a_remote_log_directory_is_looked_through_and_read(tmp_path: Path) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/perfkit-tab/a/run.json", b"{}")
    system.pipe("/perfkit-tab/a/rank-0/window-0.pt.trace.json", b"trace")
    directory = LogDirectory("memory://perfkit-tab")

    found = directory.scan().runs["a"]
    opened, size = directory.open(found, "rank-0/window-0.pt.trace.json")

    assert (opened.read(), size) == (b"trace", 5)
    assert found.path("rank-0/window-0.pt.trace.json") == "memory://perfkit-tab/a/rank-0/window-0.pt.trace.json"
    system.rm("/perfkit-tab", recursive=True)


@pytest.mark.parametrize("url", ["nowhere://bucket/logs", "memory://not-there"])
def test_a_remote_log_directory_that_cannot_be_read_is_told(url: str) -> None:
    found = LogDirectory(url).scan()

    assert found.runs == {}
    assert url in found.notes[0]


# -- what is drawn


def answer(path: Path) -> dict[str, object]:
    said = json.loads(Drawings().of(str(path), ""))
    assert isinstance(said, dict)
    return said


DIAGNOSIS = {"schema": SCHEMA, "source": "runs/x", "verdict": "Nothing is slow."}


def test_a_diagnosis_without_its_records_is_drawn(tmp_path: Path) -> None:
    write(tmp_path / "diagnosis.json", json.dumps(DIAGNOSIS).encode())

    assert answer(tmp_path)["verdict"] == "Nothing is slow."


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (json.dumps({**DIAGNOSIS, "schema": 99}).encode(), "schema 99"),
        (json.dumps({**DIAGNOSIS, "schema": 1}).encode(), "schema 1"),
        (f'{{"schema": {SCHEMA}}}'.encode(), "is damaged"),
        (b"\x00\xff", "is damaged"),
        (b"", "is damaged"),
        (b"[" * 100_000, "is damaged"),
    ],
)
def test_an_old_newer_or_damaged_diagnosis_is_reported_in_a_sentence(
    tmp_path: Path, data: bytes, expected: str
) -> None:
    write(tmp_path / "diagnosis.json", data)

    text = str(answer(tmp_path)["error"])
    assert expected in text
    assert "Traceback" not in text


def test_figures_of_a_newer_perfkit_are_made_again_with_a_note(tmp_path: Path) -> None:
    write(tmp_path / "diagnosis.json", json.dumps(DIAGNOSIS).encode())
    write(tmp_path / "figures.json", b'{"schema": 99}')

    drawn = answer(tmp_path)
    assert drawn["verdict"] == "Nothing is slow."
    assert "schema 99" in str(drawn["missing"])


def test_lines_of_source_files_outside_are_not_shown(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside.py", b"password = 'the file outside'\n" * 9)
    finding = {
        "rule": "x", "severity": "warning", "message": "m", "advice": "a", "confidence": "high",
        "spent": {"file": str(outside), "line": 3}, "cost_ns": 5,
    }  # fmt: skip
    write(tmp_path / "logs" / "diagnosis.json", json.dumps({**DIAGNOSIS, "findings": [finding]}).encode())

    drawn = json.dumps(answer(tmp_path / "logs"))
    assert "outside.py:3" in drawn
    assert "the file outside" not in drawn


def test_a_file_that_is_no_trace_is_reported(tmp_path: Path) -> None:
    trace = write(tmp_path / "x.pt.trace.json.gz", b"\x1f\x8b\x08 not a trace")

    assert "x.pt.trace.json.gz" in str(answer(trace)["error"])


def test_the_latest_answers_are_cached_until_a_file_changes(tmp_path: Path) -> None:
    drawings = Drawings()
    kept = write(tmp_path / "diagnosis.json", json.dumps(DIAGNOSIS).encode())
    first = drawings.of(str(tmp_path), "1")
    kept.unlink()

    assert drawings.of(str(tmp_path), "1") == first
    assert "error" in json.loads(drawings.of(str(tmp_path), "2"))
