"""Verdicts from a helper process: how many are started, what they leave, and what is reported where there is none."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from perfkit import _background
from perfkit._background import BackgroundError
from perfkit.diagnosis import Diagnosis
from perfkit.record import verdict_process
from perfkit.record.verdict_process import VerdictProcess
from perfkit.reports.figures import FILE
from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.records import Phases, Rank, Run, Step

MS = 1_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of forty steps, half of each a wait for data."""
    folder = tmp_path / "x"
    folder.mkdir()
    write_record(folder, Run(launch_id="a", command=(), folder="", world_size=1))
    writer = RankWriter(folder, 0)
    writer.write(Rank(rank=0, launch_id="a", host=socket.gethostname(), pid=os.getpid(), start_ns=0, steps=40))
    phases = Phases(data=50 * MS, forward=50 * MS)
    writer.append_steps([Step(step=n, start_ns=n * 100 * MS, wall_ns=100 * MS, phases_ns=phases) for n in range(40)])
    writer.close()
    return folder


def print_first(process: VerdictProcess, capsys: pytest.CaptureFixture[str]) -> str:
    process.print_soon(lambda: None)
    deadline, text = time.monotonic() + 120, ""
    while "first verdict" not in text and time.monotonic() < deadline:
        time.sleep(0.02)
        text += capsys.readouterr().err
    return text


def test_one_helper_gives_the_first_and_the_final_verdict_and_ends(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    before, used_ns = _background.started(), _background.processor_ns()
    process = VerdictProcess(Path("x"))

    first = print_first(process, capsys)
    process.end_early()
    process.print_final([], quiet=False)

    final = capsys.readouterr().err
    assert "first verdict, while training continues" in first
    assert final.startswith("x · steps.jsonl")
    assert first.splitlines()[1] in final
    assert final.endswith("perfkit explain input-bound says how to correct it\n")
    assert Diagnosis.from_json((run / "diagnosis.json").read_bytes()).verdict.split()[0] in final
    assert (run / FILE).exists()
    assert _background.started() == before + 1
    assert not _background._running
    assert _background.processor_ns() > used_ns
    assert process.peak_bytes is None or process.peak_bytes > 2**20


def test_a_helper_that_was_killed_is_replaced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = VerdictProcess(run)
    print_first(process, capsys)
    helper: Any = process._helper
    helper.kill()

    process.print_final([], quiet=False)

    assert "A step takes" in capsys.readouterr().err


def test_where_nothing_can_be_diagnosed_the_notes_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = VerdictProcess(tmp_path)
    process.print_final(["no step was seen"], quiet=True)
    process.cancel()

    assert capsys.readouterr().err == "perfkit: no step was seen\n"
    assert not _background._running


def test_a_helper_that_cannot_start_is_an_error_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_process, "HELPER", "there_is_no_such_module")

    process = VerdictProcess(tmp_path)
    with pytest.raises(BackgroundError, match="No module named there_is_no_such_module"):
        process.final()
    process.cancel()
    assert not _background._running
