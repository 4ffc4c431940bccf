"""`diagnose`, `compare`, `explain`, `doctor`: what they print, and that bad input is one line and exit code 2."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from perfkit.commands import doctor, main
from perfkit.diagnosis import Diagnosis
from perfkit.ledger.rows import Owner
from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.records import ClockPair, Phases, Rank, Run, Step


def make_run(folder: Path, data_ms: float = 20, steps: int = 30, started_s: int = 1000) -> Path:
    """A run whose steps wait for data for ``data_ms`` and compute for 20 ms."""
    folder.mkdir(parents=True)
    write_record(folder, Run(launch_id=folder.name, command=("train.py",), folder=".", world_size=1))
    writer = RankWriter(folder, 0)
    clock = (ClockPair(perf_ns=0, unix_ns=started_s * 10**9),)
    known = Rank(rank=0, launch_id=folder.name, host="h", pid=1, start_ns=0, ending="finished", clock_pairs=clock)
    writer.write(msgspec.structs.replace(known, steps=steps))
    wall = data_ms + 20
    writer.append_steps(
        [
            Step(
                step=number,
                start_ns=int(number * wall * 1e6),
                wall_ns=int(wall * 1e6) + number * 100,
                phases_ns=Phases(data=int(data_ms * 1e6) + number * 100, forward=int(12e6), backward=int(8e6)),
            )
            for number in range(steps)
        ]
    )
    writer.close()
    return folder


def trace_of(steps: int) -> dict[str, Any]:
    events = []
    for number in range(steps):
        start = number * 10_000
        common = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**common, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": start, "dur": 10_000},
            {
                **common,
                "cat": "user_annotation",
                "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                "ts": start,
                "dur": 6_000,
            },
            {**common, "cat": "cpu_op", "name": "aten::mm", "ts": start + 6_500, "dur": 3_000},
        ]
    return {"schemaVersion": 1, "traceEvents": events}


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    out, err = capsys.readouterr()
    return out, err


def test_a_run_that_waits_for_data_is_called_input_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "x")

    assert main(["diagnose", "x"]) == 0
    assert "input-bound" in said(capsys)[0]
    assert Diagnosis.from_json((tmp_path / "x" / "diagnosis.json").read_bytes()).findings[0].rule == "input-bound"


def test_a_trace_is_diagnosed_and_nothing_is_written_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(trace_of(4)).encode()))

    assert main(["diagnose", "t.json.gz"]) == 0
    assert "input-bound" in said(capsys)[0]
    assert os.listdir(tmp_path) == ["t.json.gz"]


def test_json_is_the_diagnosis_with_null_for_what_was_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "x")
    assert main(["diagnose", "x", "--json"]) == 0

    found = json.loads(said(capsys)[0])
    assert found["schema"] == 3
    assert found["phases"]["optimizer"] is None
    assert found["findings"][0]["rule"] == "input-bound"


def test_out_writes_the_diagnosis_where_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(trace_of(4)))

    assert main(["diagnose", "t.json", "--out", "d.json"]) == 0
    assert Diagnosis.from_json((tmp_path / "d.json").read_bytes()).source == "t.json"


@pytest.mark.parametrize(
    ("gate", "code"), [("input-bound", 1), ("sync-in-step", 0), ("info", 1), ("warning", 1), ("critical", 1)]
)
def test_fail_on_is_a_gate_for_ci(tmp_path: Path, gate: str, code: int) -> None:
    make_run(tmp_path / "x", data_ms=60)

    assert main(["diagnose", "x", "--fail-on", gate]) == code


def test_a_truncated_trace_is_read_as_far_as_it_goes_with_that_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.dumps(trace_of(40)).encode()
    (tmp_path / "t.json").write_bytes(whole[: len(whole) * 2 // 3])

    assert main(["diagnose", "t.json", "--all"]) == 0
    out, _ = said(capsys)
    assert "input-bound" in out
    assert "truncated" in out or "cut" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose", "missing"], "missing does not exist"),
        (["diagnose", "text.txt"], "text.txt"),
        (["diagnose", "random.bin"], "random.bin"),
        (["diagnose", "empty.json"], "empty.json"),
        (["diagnose", "other.json"], "other.json"),
        (["diagnose", "folder"], "holds no run"),
        (["diagnose", "empty-run"], "empty run: no step was recorded"),
        (["diagnose", "newer"], "schema 99"),
        (["diagnose", "good", "--fail-on", "slowness"], "--fail-on takes a severity"),
        (["diagnose", "good", "--out", "no/such/folder/d.json"], "cannot be written"),
        (["diagnose"], "runs/ must hold a run, it holds none"),
        (["diagnoze", "x"], "No such command"),
        (["run", "missing.py"], "the script missing.py does not exist"),
        (["run", "folder"], "the script folder is a folder"),
        (["run", "text.txt"], "must be a Python file"),
        (["run", "-m", "no.such.module"], "no module named 'no.such.module'"),
        (["run", "--schedule", "1,1,0", "ok.py"], "active must be a whole number of at least 1"),
        (["run", "--schedule", "often", "ok.py"], "--schedule takes wait,warmup,active"),
        (["run", "--syncs", "maybe", "ok.py"], "--syncs must be auto, dry, cuda or off"),
        (["run", "--stop-after", "0", "ok.py"], "--stop-after"),
        (["run", "--out", "text.txt", "ok.py"], "is a file"),
        (["compare"], "must hold 2 runs"),
        (["compare", "good"], "got only good"),
        (["compare", "good", "missing"], "missing does not exist"),
        (["explain", "input-bond"], "did you mean input-bound"),
        (["demo", "--steps", "2"], "--steps"),
        (["demo", "--out", "text.txt"], "is a file"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (tmp_path / "text.txt").write_text("hello\n")
    (tmp_path / "random.bin").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "ok.py").write_text("print('never run')")
    (tmp_path / "folder").mkdir()
    make_run(tmp_path / "good")
    RankWriter(tmp_path / "empty-run", 0).write(Rank(rank=0, launch_id="e", host="h", pid=1, start_ns=0))
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "run.json").write_text('{"schema": 99}')

    code = main(arguments)
    out, err = said(capsys)
    assert (code, out) == (2, "")
    assert err.startswith("perfkit: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.fixture
def three_runs(tmp_path: Path) -> Path:
    """The folder of runs; the one that started first was looked at last, which writes into it."""
    for started_s, (name, data_ms) in enumerate([("first", 1), ("second", 20), ("third", 5)]):
        make_run(tmp_path / "runs" / name, data_ms=data_ms, started_s=1000 + started_s)
    for name in ("third", "second", "first"):
        assert main(["diagnose", f"runs/{name}"]) == 0
    return tmp_path / "runs"


def test_compare_alone_takes_the_two_runs_that_started_last(
    three_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys)

    assert main(["compare", "--json"]) == 0
    compared = json.loads(said(capsys)[0])
    assert [compared[side] for side in ("before", "after")] == ["runs/second", "runs/third"]


def test_diagnose_alone_takes_the_run_that_started_last(three_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys)

    assert main(["diagnose"]) == 0
    out, err = said(capsys)
    assert "runs/third" in out
    assert err == "perfkit: the newest run is runs/third\n"


def test_commands_without_a_run_to_read_say_how_to_record_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "runs" / "only")
    assert main(["compare"]) == 2
    assert "runs/ must hold 2 runs, it holds 1" in said(capsys)[1]

    (tmp_path / "runs" / "only").rename(tmp_path / "elsewhere")
    for command in ("diagnose", "watch", "trigger"):
        assert main([command]) == 2
        assert "runs/ must hold a run, it holds none: record one with `perfkit run train.py`" in said(capsys)[1]


def test_a_program_in_place_of_a_recording_names_the_command_that_records_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("import torch")
    for arguments in (["diagnose", "train.py"], ["compare", "train.py", "x"], ["watch", "train.py"]):
        assert main(arguments) == 2
        assert "train.py is a program, not a recording: `perfkit run train.py` records" in said(capsys)[1]


def test_perfkit_alone_names_three_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = said(capsys)
    assert [f"perfkit {name}" in out for name in ("run train.py", "try train.py", "diagnose", "--help")] == [True] * 4
    assert (len(out.splitlines()), err) == (7, "")


def test_compare_says_no_difference_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")

    assert main(["compare", "a", "b"]) == 0
    assert "no difference" in said(capsys)[0].lower()


def test_explain_ledger_says_what_its_words_mean_in_25_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "ledger"]) == 0
    text = capsys.readouterr().out

    for word in (*get_args(Owner), "at the limit", "claimed", "unexplained", "Healthy"):
        assert word in text
    assert len(text.splitlines()) <= 25
    assert main(["explain"]) == 0
    assert "\nledger " in capsys.readouterr().out


def test_explain_try_says_how_a_saving_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "try"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 25
    for word in ("against itself", "in turns", "95 %", "nothing\nabout convergence", "--sweep"):
        assert word in text


def test_explain_without_a_rule_lists_all_and_with_one_tells_cause_fix_and_gain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain"]) == 0
    listed, _ = said(capsys)
    for rule in ("input-bound", "sync-in-step", "many-small-ops", "compute-bound"):
        assert rule in listed
        assert main(["explain", rule]) == 0
        text, _ = said(capsys)
        assert "Fix:" in text or "healthy" in text.lower()


def test_doctor_says_what_is_here_and_that_nothing_is_patched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "limits_of_machine", lambda: [])  # measuring takes seconds; tests/limits has its tests
    assert main(["doctor"]) == 0
    out, _ = said(capsys)
    assert "torch" in out
    assert "MISSING" not in out
    assert "now:" not in out


@pytest.mark.parametrize(
    "command", [[], ["run"], ["diagnose"], ["ranks"], ["compare"], ["explain"], ["demo"], ["doctor"]]
)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert "Usage: perfkit" in said(capsys)[0]


def test_the_version_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert said(capsys)[0].startswith("perfkit 0.")


def test_a_reader_that_leaves_early_is_no_failed_gate(tmp_path: Path) -> None:
    make_run(tmp_path / "x")
    process = subprocess.Popen(
        [sys.executable, "-m", "perfkit", "diagnose", "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)

    assert (process.returncode, err) == (0, "")
