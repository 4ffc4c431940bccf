"""`perfkit watch`: what it shows of a running training, what it reads for that, and that it writes nothing."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.commands import main, watch
from perfkit.reports import live_ranks
from perfkit.reports.live_ranks import LateRank
from perfkit.run import follower
from perfkit.run.follower import RunFollower, StepsTail
from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.reading import read_run
from perfkit.run.records import Phases, Rank, Run, Step, Waits, Window
from perfkit.run.step_file import NEWEST_ROWS

MS = 1_000_000


def row(number: int, ms: float = 100, **fields: Any) -> Step:
    wall = round(ms * MS)
    phases = Phases(data=wall // 4, forward=wall // 2, backward=wall - wall // 4 - wall // 2)
    return Step(step=number, start_ns=0, wall_ns=wall, phases_ns=phases, samples=32, **fields)


def a_run(folder: Path, rows: list[Step], *, rank: int = 0, ranks: int = 1, **facts: Any) -> None:
    """Write a run folder as this process would while it records."""
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, Run(launch_id="a", command=(), folder="", world_size=ranks, total_steps=1000))
    writer = RankWriter(folder, rank)
    known: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "start_ns": 0, **facts}
    writer.write(Rank(rank=rank, launch_id="a", **known))
    writer.append_steps(rows)
    writer.close()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RankWriter]:
    """What writes ``rank-0`` of a run in ``tmp_path``."""
    with closing(RankWriter(tmp_path, 0)) as opened:
        yield opened


def current_state(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["watch", "--once", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def state_of_files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


# -- the current state


def test_a_run_with_a_diagnosis_of_an_older_perfkit_is_diagnosed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path / "x", [row(number) for number in range(40)], ending="completed")
    old = '{"schema": 1, "source": "x", "verdict": "old", "findings": [{"rule": "input-bound", "lost_ns": 5}]}'
    (tmp_path / "x" / "diagnosis.json").write_text(old)

    text = "\n".join(current_state(capsys, str(tmp_path / "x")))

    assert "so far: A step takes 100 ms" in text
    assert re.search(r"1 input-bound  [\d.]+ ms/step", text)
    assert (tmp_path / "x" / "diagnosis.json").read_text() == old


def test_the_current_state_has_the_step_phases_rates_memory_and_the_last_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    window = Window(index=0, first_step=3, last_step=5, file=None, complete=True, reason="trigger: file")
    rows = [row(number, 200 if number == 79 else 100) for number in range(80)]
    rows.append(row(80, rss_bytes=2 * 10**9, memory_bytes=10**9))
    a_run(tmp_path / "x", rows, windows=(window,))

    assert current_state(capsys, "x") == [
        f"x · rank 0 on {socket.gethostname()}, process {os.getpid()} · running",
        "step 80 of 1,000  100 ms, median 100 ms, 2 min left",
        "▅" * 78 + "█▅",
        "█" * 20 + "▓" * 40 + "▒" * 20,
        "█ data 25.4 ms 25%  ▓ forward 50.8 ms 50%  ▒ backward 25.4 ms 25%",
        "9.85 steps/s, 315 samples/s, device 1.0 GB, process 2.0 GB",
        "window 0, steps 3 to 5, trigger: file",
    ]


def test_recorded_steps_do_not_count_for_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(
        tmp_path / "x", [*map(row, range(20)), *(row(number, 900, kind="window", window=0) for number in range(20, 24))]
    )

    text = "\n".join(current_state(capsys, str(tmp_path / "x")))
    assert "step 23 of 1,000  900 ms, median 100 ms" in text
    assert "window 0 is being recorded" in text


def test_ranks_are_compared_and_silent_or_missing_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, ms in ((0, 100), (1, 130), (2, 90)):
        a_run(tmp_path / "x", [row(number, ms) for number in range(30)], rank=rank, ranks=4)
    long_ago = (time.time() - 600,) * 2
    for file in (tmp_path / "x/rank-2").iterdir():
        os.utime(file, long_ago)

    text = " ".join(current_state(capsys, str(tmp_path / "x")))
    assert "3 ranks, 1 missing; median 90.0 ms (rank 2) to 130 ms (rank 1), at steps 29 to 29; " in text
    assert "rank 2 nothing written for 10 min" in text
    assert "  130 ms, median 130 ms" in " ".join(current_state(capsys, str(tmp_path / "x"), "--rank", "1"))


def test_control_characters_in_a_run_folder_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path / "x", [row(0)], ending="finished\x1b[2J", host="\x1b]0;mine\x07")

    assert "\x1b" not in "\n".join(current_state(capsys, str(tmp_path / "x")))


def rank_steps(rank: int, late: int, steps: int = 40) -> list[Step]:
    """Steps of 100 ms, in which the late rank waits 30 ms for its data and the others 10, and then for that rank."""
    data = (30 if rank == late else 10) * MS
    phases, waits = Phases(data=data, backward=100 * MS - data), Waits(backward=35 * MS - data)
    return [
        Step(step=number, start_ns=0, wall_ns=100 * MS, phases_ns=phases, waited_phases_ns=waits)
        for number in range(steps)
    ]


def test_the_rank_that_the_others_wait_for_is_named_with_the_time_and_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # More than are read at one refresh, and the late one is among the last.
    for rank in range(70):
        a_run(tmp_path / "x", rank_steps(rank, late=68), rank=rank, ranks=70)

    text = " ".join(current_state(capsys, str(tmp_path / "x")))
    assert "Rank 68 comes last and the other ranks wait for it, 20.0 ms of the 100 ms step (20%)" in text
    assert "it spends 20.0 ms more waiting for its data than the others" in text


def test_in_a_pipe_the_late_rank_is_a_part_of_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its process, this one, still runs, and writes no diagnosis.
    monkeypatch.setattr(watch, "_FINAL_DIAGNOSIS_S", 0)
    for rank in range(2):
        a_run(tmp_path / "x", rank_steps(rank, late=1), rank=rank, ranks=2, ending="completed")

    assert main(["watch", str(tmp_path / "x")]) == 0
    assert "late: rank 1, 20.0 ms/step" in capsys.readouterr().out


@pytest.mark.parametrize("rows", [rank_steps(0, late=1), rank_steps(1, late=1, steps=5), []])
def test_no_rank_is_named_where_none_is_late_or_too_few_steps_are_shared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[Step]
) -> None:
    a_run(tmp_path / "x", rank_steps(0, late=1), rank=0, ranks=2)
    a_run(tmp_path / "x", rows, rank=1, ranks=2)

    assert "comes last" not in " ".join(current_state(capsys, str(tmp_path / "x")))


def test_comparing_ranks_takes_a_twentieth_of_the_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        a_run(tmp_path, rank_steps(rank, late=1), rank=rank, ranks=2)
    live, now = RunFollower(tmp_path), 0.0
    compared: list[float] = []

    def slow(ranks: Iterable[Any]) -> None:
        nonlocal now
        compared.append(now)
        now += 2.0

    monkeypatch.setattr(live_ranks, "measure_rank_times", slow)
    late = LateRank(clock=lambda: now)
    for one in live.ranks.values():
        one.poll()
    for _ in range(100):
        late.update(live)
        now += 1.0
    assert compared == [0.0, 42.0, 84.0]


def test_runs_without_a_step_or_a_rank_are_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "x", [])
    write_record(tmp_path, Run(launch_id="a", command=(), folder="", world_size=1))

    assert current_state(capsys, str(tmp_path / "x"))[-1] == "no step yet"
    assert current_state(capsys, str(tmp_path)) == [f"{tmp_path}: no rank has started yet"]


def test_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / "x", [row(0)])

    for arguments, says in (
        ([], "runs/ must hold a run"),
        (["nowhere"], "nowhere is not a folder"),
        (["."], "holds no run"),
        (["x", "--rank", "4"], "x has no rank 4 (available: 0)"),
    ):
        assert main(["watch", "--once", *arguments]) == 2
        assert says in capsys.readouterr().err


# -- reading growing files


def test_only_new_rows_are_read_and_a_half_written_row_is_read_later(tmp_path: Path, writer: RankWriter) -> None:
    path = tmp_path / "rank-0/steps.jsonl"
    tail = StepsTail(path)
    assert tail.poll() == 0  # the file is not there yet
    writer.append_steps([row(0), row(1)])
    assert tail.poll() == 2
    with path.open("ab") as file:
        file.write(b'{"step":2,"start_ns":0,')
        file.flush()
        assert tail.poll() == 0
        file.write(b'"wall_ns":5,"phases_ns":{}}\n')
    assert tail.poll() == 1

    assert [one.step for one in tail.rows] == [0, 1, 2]
    assert (tail.rows[-1].wall_ns, tail.damaged) == (5, 0)


def test_a_file_whose_older_rows_are_merged_is_still_followed_in_bounded_memory(
    tmp_path: Path, writer: RankWriter
) -> None:
    tail = StepsTail(tmp_path / "rank-0/steps.jsonl")
    seen: list[int] = []
    steps = 2 * NEWEST_ROWS + 1500
    for first in range(0, steps, 500):
        writer.append_steps([row(number) for number in range(first, first + 500)])
        tail.poll()
        seen += [one.step for one in list(tail.rows)[-500:]]

    assert len(read_run(tmp_path).ranks[0].steps) < steps / 2 + 1500  # it was merged on the way
    assert seen == list(range(steps))
    assert len(tail.rows) == follower.MAX_SHOWN_ROWS


def test_only_the_end_of_a_long_file_is_read_and_damaged_rows_are_skipped(
    tmp_path: Path, writer: RankWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_TAIL_BYTES", 4000)
    writer.append_steps([row(number) for number in range(500)])
    path = tmp_path / "rank-0/steps.jsonl"
    tail = StepsTail(path)
    with path.open("ab") as file:
        file.write(b'{"step":"x"}\n\xff\xfe\n')

    assert 10 < tail.poll() < 40
    assert tail.rows[-1].step == 499
    assert tail.damaged == 2


# -- following a run


def test_a_real_run_is_followed_to_its_end_in_a_pipe_without_changing_its_folder(tmp_path: Path) -> None:
    weight = torch.ones(2, requires_grad=True)
    command = [sys.executable, "-m", "perfkit", "watch", "x", "--every", "0.2", "--wait"]
    watching = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    with perfkit.profile(tmp_path / "x", schedule=perfkit.schedule(wait=10**6, warmup=0, active=1), quiet=True) as prof:
        lines: list[str] = []
        for _ in prof.steps(range(100_000)):
            weight.sum().backward()
            time.sleep(0.01)
            if prof.step_num == 200:
                lines += [watching.stdout.readline(), watching.stdout.readline()]
                break
    out, err = watching.communicate()
    before = state_of_files(tmp_path / "x")
    assert main(["watch", "--once", str(tmp_path / "x")]) == 0

    lines += out.splitlines()
    assert (watching.returncode, err) == (0, "")
    assert "running" in lines[0] or "no step yet" in lines[0]
    assert lines[-1].startswith("step 20")
    assert lines[-1].endswith(": finished")
    assert state_of_files(tmp_path / "x") == before


def test_watch_opens_no_file_of_the_run_for_writing(tmp_path: Path) -> None:
    a_run(tmp_path / "x", [row(number) for number in range(40)])
    program = tmp_path / "watched.py"
    program.write_text(
        "import os, sys\n"
        "def audit(event, args):\n"
        "    if event == 'open' and '/x/' in str(args[0]) and (args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):\n"
        "        os._exit(9)\n"
        "    if event in ('os.rename', 'os.remove', 'os.mkdir', 'os.utime', 'os.chmod') and '/x' in str(args[0]):\n"
        "        os._exit(9)\n"
        "sys.addaudithook(audit)\n"
        "from perfkit.commands import main\n"
        "code = main(['watch', '--once', sys.argv[1]])\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, program, tmp_path / "x"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "step 39" in done.stdout


def test_watch_exits_when_the_runs_process_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    a_run(tmp_path / "x", [row(0)], pid=ended.pid)

    assert main(["watch", str(tmp_path / "x")]) == 0
    assert "its process ended without recording why" in capsys.readouterr().out


def test_on_a_terminal_q_quits_and_the_terminal_is_restored(tmp_path: Path) -> None:
    import termios

    a_run(tmp_path / "x", [row(number) for number in range(40)])
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "perfkit", "watch", str(tmp_path / "x")]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env) as watching:
        shown = b""
        while b"steps/s" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"q")
        assert watching.wait(timeout=60) == 0
    after = termios.tcgetattr(theirs)
    os.close(ours)
    os.close(theirs)

    assert after == before
    assert "step 39" in shown.decode()


def test_findings_come_from_the_newest_window_while_the_run_goes_on(tmp_path: Path) -> None:
    weight = torch.ones(2, requires_grad=True)
    schedule = perfkit.schedule(wait=3, warmup=1, active=2, repeat=1)
    with perfkit.profile(tmp_path / "x", schedule=schedule, quiet=True) as prof:
        for _ in prof.steps(range(30)):
            weight.sum().backward()
            time.sleep(0.01)
        # The run goes on: its own diagnosis is not written yet.
        assert not (tmp_path / "x/diagnosis.json").exists()
        command = [sys.executable, "-m", "perfkit", "watch", "--once", "x"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not (tmp_path / "x/diagnosis.json").exists()

    assert "so far: " in done.stdout
