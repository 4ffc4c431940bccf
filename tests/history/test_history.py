"""`perfkit history`: runs by workload, changes with their commits, and what cannot be read."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.commands import main
from perfkit.history.gathering import read_history
from perfkit.history.results import History
from perfkit.history.workloads import command_name
from perfkit.run.rank_writer import write_record
from perfkit.run.records import ClockPair, EnergyUse, Run, SyncEvent, Syncs

SlowerSince = Callable[..., Path]
WriteRun = Callable[..., Path]


def test_a_slower_step_is_reported_with_its_commit_and_what_else_changed(
    slower_since: SlowerSince, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = slower_since(20, 12, 0.15)
    for number in range(12, 20):
        write_run(number, 46, versions={"torch": "2.14.0"})
    for number in range(12):
        write_run(number, 40 + number % 3 / 10, versions={"torch": "2.13.0"})

    assert main(["history", str(runs)]) == 0

    printed = " ".join(capsys.readouterr().out.split())
    assert "The step takes 46.1 ms since 2026-01-08 12:00, +15% (+14% to +16%)" in printed
    assert "commit 000000c (before: 000000b)" in printed
    assert "version of torch: 2.13.0 → 2.14.0" in printed
    assert "▲ slower +15%: " in printed
    (workload,) = read_history(runs).workloads
    (change,) = workload.changes
    assert (change.at, change.commit, change.commit_before) == (12, "000000c".ljust(40, "0"), "000000b".ljust(40, "0"))
    assert change.low < 0.15 < change.high


def test_runs_that_vary_have_no_change_and_the_report_says_by_how_much(
    slower_since: SlowerSince, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", str(slower_since(20, 20, 0))]) == 0

    printed = " ".join(capsys.readouterr().out.split())
    assert "over 20 runs; no change above" in printed
    assert "the medians of runs vary by" in printed


def test_one_slow_run_at_the_end_is_named_and_is_no_change(slower_since: SlowerSince) -> None:
    (workload,) = read_history(slower_since(12, 11, 0.4)).workloads

    assert workload.changes == ()
    assert "The newest run takes" in workload.verdict
    assert "2 more would show it" in workload.verdict


def test_a_line_fits_eighty_columns_and_shows_the_distribution_phase_memory_and_first_finding(
    slower_since: SlowerSince, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = slower_since(8, 8, 0)
    for folder in runs.iterdir():
        found = {"rule": "input-bound", "change": {"file": "/x/train.py", "line": 12}}
        (folder / "diagnosis.json").write_text(json.dumps({"schema": 3, "findings": [found]}))
    assert main(["history", str(runs)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines.count("  first finding: input-bound train.py:12") == 1
    row = next(line for line in lines if line.startswith("01-05"))
    assert "forward 75%" in row
    assert "500 MB" in row
    assert "█" in row


def test_columns_of_syncs_and_energy_are_there_where_a_run_has_them(
    write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    used = EnergyUse(source="rapl", part="package-0", joules=80.0, steps=40, wall_ns=10**9)
    folder = write_run(0, 40, energy=(used,))
    event = SyncEvent(file="t.py", line=1, function="f", kind="read", op="item", count=80, raw_syncs=80, per_step=2.0)
    write_record(folder / "rank-0", Syncs(mode="cuda", observed=True, steps=40, events=(event,)))

    assert main(["history", str(folder.parent)]) == 0

    printed = capsys.readouterr().out
    assert "syncs" in printed
    assert "J/step" in printed
    assert "2 J" in printed
    (run,) = read_history(folder.parent).workloads[0].runs
    assert (run.energy_j, run.syncs_per_step) == (2.0, 2.0)


def test_programs_and_machines_have_histories_of_their_own(write_run: WriteRun) -> None:
    for number in range(3):
        write_run(number, 40)
        write_run(number, 40, name=f"eval-{number}", command=("eval.py",))
        write_run(number, 40, name=f"gpu-{number}", devices=("NVIDIA H100",))
        folder = write_run(number, 40, name=f"other-{number}", host="ci-2")

    names = {(one.name, one.machine) for one in read_history(folder.parent).workloads}
    assert names == {
        ("train.py --epochs 3", "host ci-1, CPU with 8 cores"),
        ("eval.py", "host ci-1, CPU with 8 cores"),
        ("train.py --epochs 3", "host ci-1, NVIDIA H100"),
        ("train.py --epochs 3", "host ci-2, CPU with 8 cores"),
    }
    merged = read_history(folder.parent, any_host=True, workload="train.py").workloads
    assert sorted(len(one.runs) for one in merged) == [3, 6]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["train.py", "--lr", "0.1", "--epochs=3"], ["train.py", "--epochs", "3", "--lr=0.1"]),
        (["/home/me/src/train.py"], ["src/train.py"]),
        (["train.py", "--output-dir", "a"], ["train.py", "--output-dir", "b"]),
        (["train.py", "--run_name=x1", "--seed=1"], ["train.py", "--seed=2", "--run_name=x2"]),
        (["train.py", "data-20261124-091509.csv"], ["train.py", "data-20261125-101112.csv"]),
    ],
)
def test_what_differs_from_run_to_run_is_no_other_program(first: list[str], second: list[str]) -> None:
    names = {
        command_name(Run(launch_id="x", command=tuple(one), folder="/home/me", world_size=1)) for one in (first, second)
    }

    assert len(names) == 1


@pytest.mark.parametrize("options", [["--epochs", "4"], ["--model-name", "b"], ["--dataset-name=b"], ["--fast"]])
def test_other_work_is_another_program(options: list[str]) -> None:
    plain, other = (
        command_name(Run(launch_id="x", command=("train.py", *words), folder="/home/me", world_size=1))
        for words in (["--epochs", "3"], options)
    )

    assert plain != other


def test_damaged_runs_and_those_of_a_newer_perfkit_are_skipped_and_named(
    slower_since: SlowerSince, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # a long temporary folder breaks no name
    runs = slower_since(8, 8, 0)
    (runs / "train-0001" / "rank-0" / "rank.json").write_text("{")
    (runs / "train-0002" / "run.json").write_text('{"schema": 99}')
    shutil.rmtree(runs / "train-0003" / "rank-0")
    (runs / "train-0004" / "run.json").write_text("[]")
    with (runs / "train-0005" / "rank-0" / "steps.jsonl").open("a") as rows:
        rows.write("{broken\n")
    (runs / "notes").mkdir()

    assert main(["history", str(runs), "--all"]) == 0

    printed = " ".join(capsys.readouterr().out.split())
    assert "train-0001: rank-0/rank.json: damaged" in printed
    assert "has schema 99" in printed
    assert "train-0003: no rank has written its rank.json" in printed
    assert "steps.jsonl: 1 of 41 rows are damaged" in printed
    found = read_history(runs)
    assert len(found.skipped) == 3
    assert [len(one.runs) for one in found.workloads if one.name == "unknown program"] == [1]


def test_clocks_that_jump_or_are_wrong_are_noted_and_the_runs_are_read(write_run: WriteRun) -> None:
    hour = 3600 * 10**9
    now = time.time_ns()
    write_run(0, 40, clock_pairs=(ClockPair(1_000, now), ClockPair(10**9, now + 10**9 - hour)))
    write_run(1, 40, clock_pairs=(ClockPair(1_000, 10**9),))
    folder = write_run(2, 40, clock_pairs=(ClockPair(1_000, now + 2**61),))

    (workload,) = read_history(folder.parent).workloads

    assert [run.path[-4:] for run in workload.runs] == ["0001", "0000", "0002"]
    notes = [" ".join(run.notes) for run in workload.runs]
    assert "the clock was set back by 60 min" in notes[1]
    assert "clock was in the year 1970" in notes[0]
    assert "clock was in the year" in notes[2]


def test_a_failed_run_a_killed_one_and_one_without_steps_are_told_apart(write_run: WriteRun) -> None:
    write_run(0, 40, ending="ValueError: x")
    write_run(1, 40, ending=None, end_ns=None, host="elsewhere")
    folder = write_run(2, 40, steps=0)

    notes = {run.path[-4:]: run.notes for one in read_history(folder.parent).workloads for run in one.runs}
    assert notes == {"0000": ("it ended with ValueError: x",), "0001": ("it wrote no end",), "0002": ()}


def test_memory_that_rose_once_in_a_long_run_is_found_in_the_newest(write_run: WriteRun) -> None:
    write_run(0, 4, steps=4_000, memory_peak_bytes=3 * 10**9)
    folder = write_run(1, 4, steps=4_000, memory_peak_bytes=3 * 10**9)

    (workload,) = read_history(folder.parent).workloads
    assert workload.runs[1].memory_bytes == 3 * 10**9
    assert (workload.runs[0].is_whole, workload.runs[1].is_whole) == (False, True)
    assert workload.runs[0].median_ns == pytest.approx(workload.runs[1].median_ns, rel=0.01)


def test_json_is_read_back_and_holds_what_was_printed(
    slower_since: SlowerSince, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = slower_since(20, 12, 0.2)

    assert main(["history", str(runs), "--json", "--limit", "15"]) == 0

    found = History.from_json(capsys.readouterr().out)
    (workload,) = found.workloads
    assert (len(workload.runs), workload.left_out) == (15, 5)
    assert workload.changes[0].at == 7
    assert "15 runs of 1 workloads" in repr(found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "nothing is not a folder"),
        (["empty"], "empty holds no run that can be read; record one"),
        (["runs/train-0000"], "is one run, and a history is of several"),
        (["runs", "--workload", "trian.py"], "no workload here contains 'trian.py'; there are 'train.py --epochs 3'"),
        (["runs", "page.html"], "add --html to write a page to page.html"),
        (["runs", "--limit", "0"], "--limit"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(
    arguments: list[str],
    words: str,
    write_run: WriteRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(0, 40)
    (tmp_path / "empty").mkdir()

    assert main(["history", *arguments]) == 2

    printed = capsys.readouterr()
    assert words in printed.err
    assert "Traceback" not in printed.err


def test_names_from_outside_are_no_markup_and_no_control_characters(
    write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(
        0, 40, command=("[bold red]train\x1b[31m.py", ":smile:"), host="[link=x]h", ending="\x1b]0;x\x07"
    )

    assert main(["history", str(folder.parent)]) == 0

    printed = capsys.readouterr().out
    assert "[bold red]train" in printed
    assert "[link=x]h" in printed
    assert ":smile:" in printed
    assert "\x1b" not in printed


def test_a_thousand_runs_take_seconds_whatever_their_length(write_run: WriteRun) -> None:
    long = write_run(0, 4, steps=3_000)
    for number in range(1, 40):
        shutil.copytree(long, long.parent / f"copy-{number}")
    write_run(99, 4, steps=50)

    began = time.process_time()
    read_history(long.parent)
    each = (time.process_time() - began) / 40

    # Twenty milliseconds each would be a thousand runs in 20 s: it is 4 ms on an idle core.
    assert each < 0.02
    assert (long / "rank-0" / "steps.jsonl").stat().st_size > 400_000


def test_a_long_run_has_the_median_of_its_diagnosis_if_that_is_of_all_its_steps(write_run: WriteRun) -> None:
    step = {
        "steps": 3_000,
        "wall_ns": 9,
        "median_ns": 7_777,
        "p10_ns": 7_000,
        "p90_ns": 8_000,
        "phases_ns": {"data": 9},
    }
    first = write_run(0, 4, steps=4_000)
    second = write_run(1, 4, steps=4_000)
    write_run(2, 4, steps=40)
    for folder, left_out in ((first, 1_000), (second, 900)):
        stored = {"schema": 3, "step": {**step, "excluded": {"outlier": left_out}}}
        (folder / "diagnosis.json").write_text(json.dumps(stored))

    runs = read_history(first.parent).workloads[0].runs
    assert (runs[0].median_ns, runs[0].main_phase) == (7_777, ("data", 9))
    assert runs[1].median_ns == pytest.approx(4_000_000, rel=0.05)
