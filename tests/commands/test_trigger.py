"""`perfkit trigger`: a window requested from another process, and every reason why none will come."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit import _clock
from perfkit.commands import main
from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.reading import read_run
from perfkit.run.records import ClockPair, Rank, Run, Window


def a_run(folder: Path, *, triggers: str | None = "file", ranks: int = 1, **facts: Any) -> Path:
    """Write a run folder as this process would while it records."""
    options = {"recorders": "kineto"} | ({"triggers": triggers} if triggers is not None else {})
    write_record(folder, Run(launch_id="a", command=(), folder="", world_size=ranks, options=options))
    for index in range(ranks):
        known: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "start_ns": 0, **facts}
        RankWriter(folder, index).write(Rank(rank=index, launch_id="a", **known))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x").mkdir()
    return tmp_path / "x"


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["trigger", *arguments])
    return code, capsys.readouterr().err.strip()


def test_a_window_of_a_running_training_is_requested_from_another_process_and_waited_for(tmp_path: Path) -> None:
    # A long way off, so that the window is the trigger's.
    never = perfkit.schedule(wait=10**6, warmup=0, active=1)
    weight = torch.ones(2, requires_grad=True)
    requesting: subprocess.Popen[str] | None = None
    with perfkit.profile(tmp_path / "x", schedule=never, quiet=True) as prof:
        for number in prof.steps(range(100_000)):
            weight.sum().backward()
            time.sleep(0.01)
            if number == 5:
                command = [sys.executable, "-m", "perfkit", "trigger", "x", "--wait"]
                requesting = subprocess.Popen(
                    command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            if requesting is not None and requesting.poll() is not None:
                break

    assert requesting is not None
    out, err = requesting.communicate()
    (window,) = read_run(tmp_path / "x").ranks[0].rank.windows  # type: ignore[union-attr]  # it was just written
    assert (requesting.returncode, out) == (0, "x/rank-0/window-0.pt.trace.json.gz\n")
    assert err == "perfkit: requested a window from rank 0 of x; it starts with the next step\n"
    assert (window.reason, window.complete) == ("trigger: file", True)


def test_perfkit_run_has_the_triggers_of_its_options(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "weight, steps = torch.ones(2, requires_grad=True), 0\n"
        "for batch in torch.utils.data.DataLoader(torch.ones(9, 2)):\n"
        "    (weight * batch).sum().backward()\n"
        "    torch.optim.SGD([weight]).step()\n"
        "    steps += 1\n"
        "    assert steps < 6\n"
    )
    wrong = cli("run", "--trigger", "slow_step", "train.py")
    done = cli("run", "--out", "x", "--trigger", "slow-step=2", "--trigger", "exception", "train.py")

    assert (wrong.returncode, wrong.stderr[:34]) == (2, "perfkit: triggers may hold 'slow-s")
    options = read_run(tmp_path / "x").run.options  # type: ignore[union-attr]  # it was just written
    assert options["triggers"] == "file,slow-step,exception"
    assert done.returncode == 1
    assert '"line": 7,' in (tmp_path / "x/rank-0/failure.json").read_text()


def test_it_touches_the_file_of_one_rank_or_of_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(folder, ranks=2)

    assert run_command(capsys, str(folder), "--rank", "1")[0] == 0
    assert [path.parent.name for path in folder.rglob("trigger")] == ["rank-1"]
    code, text = run_command(capsys, str(folder), "--all")
    assert (code, text) == (0, f"perfkit: requested a window from rank 0, 1 of {folder}; it starts with the next step")
    assert (folder / "trigger").exists()


def test_a_run_that_has_ended_is_an_error_with_time_and_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = 1_800_000_000 * 10**9
    a_run(folder, ending="finished", end_ns=5, clock_pairs=(ClockPair(5, end),))

    code, text = run_command(capsys, str(folder))
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end / 1e9))
    assert code == 2
    assert text == f"perfkit: rank 0 of {folder} has ended at {when}: finished; there is no step to record"


def test_a_run_whose_process_was_killed_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    a_run(folder, pid=ended.pid)

    code, text = run_command(capsys, str(folder))
    assert code == 2
    assert f"its process {ended.pid} does not exist any more, and did not write why" in text


@pytest.mark.parametrize(
    ("triggers", "message"),
    [
        ("", "was started with triggers=(), without 'file': add it for the next run"),
        ("signal", "was started with triggers=('signal',)"),
        (None, "recorded by a version of perfkit without triggers"),
    ],
)
def test_a_run_without_the_file_trigger_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], triggers: str | None, message: str
) -> None:
    code, text = run_command(capsys, str(a_run(folder, triggers=triggers)))

    assert code == 2
    assert message in text
    assert not list(folder.rglob("trigger"))


def test_wrong_arguments_are_errors_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(folder)

    assert "is not a folder" in run_command(capsys, str(folder / "nowhere"))[1]
    assert "holds no run" in run_command(capsys, str(folder.parent))[1]
    assert "has no rank 7 (available: 0)" in run_command(capsys, str(folder), "--rank", "7")[1]
    assert "--rank N and --all exclude each other" in run_command(capsys, str(folder), "--rank", "0", "--all")[1]


def test_the_error_for_another_users_folder_names_its_owner(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(folder)

    def refuse(*arguments: Any) -> None:
        raise PermissionError(13, "Permission denied")

    # Root, as whom tests may run, is refused nothing.
    monkeypatch.setattr(os, "replace", refuse)
    code, text = run_command(capsys, str(folder))
    owner = folder.owner()
    assert code == 2
    assert f"{folder / 'rank-0'} cannot be written (Permission denied); it belongs to {owner}" in text
    assert f"ask {owner} to run `perfkit trigger {folder}`, or to allow you to write" in text


def test_a_silent_or_remote_rank_is_requested_with_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(folder, host="elsewhere", pid=1)
    os.utime(folder / "rank-0/rank.json", (time.time() - 1000,) * 2)

    code, text = run_command(capsys, str(folder))
    assert code == 0
    assert "has written nothing for 1000 s: it is in a very long step, or dead" in text
    assert "rank 0 runs on elsewhere: it starts when it sees the file" in text


def test_waiting_ends_with_the_reason_if_the_run_ends_first_or_reached_its_limit(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    endings = iter([{"ending": "KeyboardInterrupt"}, {"notes": ("the trigger 'file' opened 10 windows, its limit",)}])
    for expected in ("has ended: KeyboardInterrupt", "opened 10 windows, its limit"):
        a_run(folder)
        monkeypatch.setattr(time, "sleep", lambda seconds: a_run(folder, **next(endings)))
        code, text = run_command(capsys, str(folder), "--wait")
        assert code == 1
        assert expected in text


def test_waiting_ignores_windows_of_the_schedule_and_prints_the_problem_of_its_own(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    window: dict[str, Any] = {"first_step": 1, "last_step": 2, "file": None, "complete": False}
    own = Window(index=0, reason="schedule", **window)
    asked = Window(index=1, reason="trigger: file", problem="OSError: no space left", **window)
    a_run(folder)
    monkeypatch.setattr(time, "sleep", lambda seconds: a_run(folder, windows=(own, asked), start_ns=_clock.now_ns()))

    assert run_command(capsys, str(folder), "--wait") == (
        1,
        f"perfkit: requested a window from rank 0 of {folder}; it starts with the next step\n"
        "perfkit: window 1 of rank 0 has no trace: OSError: no space left",
    )
