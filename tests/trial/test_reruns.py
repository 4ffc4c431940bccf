"""A rerun of a program: what it was asked to do differently, how it ended, and that nothing of it is left."""

from __future__ import annotations

import compileall
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfkit.trial import processes
from perfkit.trial.child import ending_of
from perfkit.trial.processes import PLAN_VARIABLE, family_of, started_for
from perfkit.trial.reruns import STEPPING, RerunPlan, RerunResult, TriedProgram, start_rerun

TRAIN = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4)
for epoch in range(int(sys.argv[1])):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def rerun(workspace: Path, source: str, *arguments: str, limit_s: float = 100, **plan: object) -> RerunResult:
    Path("train.py").write_text(source)
    program = TriedProgram("train.py", arguments)
    with start_rerun(program, RerunPlan(**plan), workspace) as running:  # type: ignore[arg-type]
        return running.wait(limit_s)


def test_a_rerun_stops_after_its_steps_with_its_changes_applied_and_its_losses_logged(
    user: Path, workspace: Path
) -> None:
    result = rerun(workspace, TRAIN, "1000", steps=12, changes=("fused-optimizer",))

    assert (result.ending, result.message) == ("stopped", "the program was stopped after 12 steps")
    assert result.steps == len(result.losses) == 12
    assert all(loss is not None and loss > 0 for loss in result.losses)
    (change,) = result.applied
    assert (change.change, change.count) == ("fused-optimizer", 1)
    assert change.places[0].file == str(user / "train.py")
    assert not (result.folder / "diagnosis.json").exists()
    # Importing torch alone takes 100 MB.
    assert (result.peak_bytes is not None and result.peak_bytes > 100e6) == sys.platform.startswith("linux")


@pytest.mark.skipif(sys.platform != "linux", reason="needs named pipes and /proc")
def test_a_rerun_that_is_compared_stops_itself_after_its_first_step(user: Path, workspace: Path) -> None:
    Path("train.py").write_text(TRAIN)
    plan = RerunPlan(steps=12, stops=True)
    with start_rerun(TriedProgram("train.py", ("1000",)), plan, workspace) as running:
        state = Path(f"/proc/{running.process.pid}/stat")
        until = time.monotonic() + 100
        while state.read_text().rpartition(")")[2].split()[0] != "T" and time.monotonic() < until:
            time.sleep(0.02)
        assert (running.folder / STEPPING).exists()
        running.process.send_signal(signal.SIGCONT)
        result = running.wait(100)

    assert (result.ending, result.steps) == ("stopped", 12)


@pytest.mark.slow
def test_a_program_that_is_over_before_its_steps_has_ended(user: Path, workspace: Path) -> None:
    result = rerun(workspace, TRAIN, "1", steps=40, log_loss=False)

    assert (result.ending, result.steps) == ("ended", 16)
    assert result.message == "the program was over after 16 of 40 steps"
    assert set(result.losses) == {None}


@pytest.mark.parametrize(
    ("error", "ending", "message"),
    [
        (None, "ended", "the program was over"),
        (SystemExit(0), "ended", "the program was over"),
        (SystemExit(3), "failed", "the program ended with exit code 3"),
        (SystemExit("no such data"), "failed", "the program ended: no such data"),
        (MemoryError(), "out-of-memory", "MemoryError"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore"),
            "out-of-memory",
            "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
        ),
        (
            RuntimeError("Caught it in worker 0.\nOriginal Traceback (most recent call last):\nKeyError: 3"),
            "failed",
            "KeyError: 3",
        ),
    ],
)
def test_an_ending_names_its_cause(error: BaseException | None, ending: str, message: str) -> None:
    found = ending_of(error)
    assert (found.ending, found.message) == (ending, message)


LINGERS = """
import threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
"""


def test_a_thread_that_keeps_a_finished_program_alive_is_not_waited_for(
    user: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.trial.reruns._GRACE_S", 0.5)
    monkeypatch.setattr("perfkit.trial.reruns._END_S", 0.5)
    result = rerun(workspace, LINGERS, limit_s=60)
    assert (result.ending, result.message) == ("ended", "the program was over after 0 of 40 steps")


HANGS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
ignoring = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
if os.fork() == 0:
    os.setsid()  # a daemon
    subprocess.Popen([sys.executable, "-c", ignoring])
    os._exit(0)
open("begun", "w").close()
time.sleep(600)
"""


def test_a_program_that_hangs_is_ended_with_the_daemon_that_it_has_started(
    user: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.trial.reruns._GRACE_S", 0.5)
    (user / "train.py").write_text(HANGS)
    with start_rerun(TriedProgram("train.py"), RerunPlan(), workspace) as running:
        while not (running.folder / f"root{user}" / "begun").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        plan = running.folder / "plan.json"
        assert len(started_for(plan)) >= 2
        result = running.wait(0.1)
        assert started_for(plan) == []

    assert (result.ending, result.steps) == ("timed-out", 0)
    assert result.message == "the program had done 0 of 40 steps when its time was over"
    assert sorted(path.name for path in running.folder.iterdir()) == ["output.txt", "plan.json"]


def test_the_death_of_perfkit_ends_a_rerun(user: Path, workspace: Path) -> None:
    (user / "train.py").write_text(HANGS)
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from perfkit.trial.reruns import RerunPlan, TriedProgram, start_rerun\n"
        "start_rerun(TriedProgram('train.py'), RerunPlan(), Path(sys.argv[1]))\n"
        "time.sleep(600)\n"
    )
    perfkit = subprocess.Popen([sys.executable, "-c", script, str(workspace)])
    until = time.monotonic() + 60
    while not (begun := list(workspace.glob(f"*/root{user}/begun"))) and time.monotonic() < until:
        time.sleep(0.05)
    plan = Path(str(begun[0]).partition("/root/")[0]) / "plan.json"
    assert started_for(plan)
    perfkit.kill()
    perfkit.wait()

    while started_for(plan) and time.monotonic() < until:
        time.sleep(0.05)
    assert started_for(plan) == []


def test_a_launcher_that_does_not_exist_is_an_error(user: Path, workspace: Path) -> None:
    (user / "train.py").touch()
    with pytest.raises(FileNotFoundError, match="no-launcher"):
        start_rerun(TriedProgram("train.py", launcher=("no-launcher",)), RerunPlan(), workspace)


@pytest.mark.parametrize("kernel_lists", [True, False], ids=["listed by the kernel", "found among all processes"])
def test_a_family_is_a_process_with_all_below_it(monkeypatch: pytest.MonkeyPatch, kernel_lists: bool) -> None:
    monkeypatch.setattr(processes, "_kernel_lists_children", lambda: kernel_lists)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    assert {os.getpid(), child} <= set(family_of(os.getpid()))
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert family_of(child) == []
    assert PLAN_VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("source", "ending", "message"),
    [
        ("import os; os._exit(0)", "ended", "the program was over after 0 of 40 steps"),
        ("print(1)", "ended", "the program was over after 0 of 40 steps"),
        ("raise ValueError('no such model')", "failed", "ValueError: no such model (train.py:1)"),
        ("import os; os.kill(os.getpid(), 9)", "out-of-memory", "the program was killed, as the system does"),
        ("import os; os.kill(os.getpid(), 11)", "failed", "the program was ended by SIGSEGV"),
        ("import os; os._exit(3)", "failed", "the program ended with exit code 3"),
        ("import os; print('bad data'); os.sys.stdout.flush(); os._exit(3)", "failed", "bad data"),
        ("def train(:", "failed", "SyntaxError: invalid syntax (train.py, line 1)"),
    ],
)
def test_a_program_without_steps_ends_with_its_reason(
    user: Path, workspace: Path, source: str, ending: str, message: str
) -> None:
    result = rerun(workspace, source)
    assert (result.ending, result.steps) == (ending, 0)
    assert result.message.startswith(message)


PLACES = """
import json
import os
import traceback
import helper

places = {"file": __file__, "helper": helper.__file__, "code": helper.where.__code__.co_filename}
places["error"] = helper.where()
places["annotations"] = repr(helper.where.__annotations__)
with open("places.json", "w") as file:
    json.dump(places, file)
"""
HELPER = """
import traceback

def where(depth: int = 1) -> str:
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__.tb_frame.f_code.co_filename
"""


def test_code_has_the_user_s_file_names_and_paths_made_from_file_are_the_rerun_s(user: Path, workspace: Path) -> None:
    (user / "helper.py").write_text(HELPER)
    (user / "train.py").write_text(PLACES)
    compileall.compile_dir(user, quiet=1)
    with start_rerun(TriedProgram(str(user / "train.py")), RerunPlan(), workspace) as running:
        running.wait(100)
        root = f"{running.folder}/root"
        places = json.loads(Path(f"{root}{user}/places.json").read_text())

    assert places == {
        "file": f"{root}{user}/train.py",
        "helper": f"{root}{user}/helper.py",
        "code": f"{user}/helper.py",
        "error": f"{user}/helper.py",
        "annotations": "{'depth': <class 'int'>, 'return': <class 'str'>}",
    }


@pytest.mark.slow
def test_a_run_is_recorded_and_diagnosed_where_that_is_wanted(user: Path, workspace: Path) -> None:
    result = rerun(workspace, TRAIN, "1000", steps=25, record=True)

    assert (result.ending, len(result.losses)) == ("stopped", 25)
    assert result.steps < 25
    assert (result.folder / "diagnosis.json").exists()


RANKS = """
import os
import torch
import torch.distributed

torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    optimizer.zero_grad()
    if step == 5 and os.environ["RANK"] == FAILING:
        raise ValueError("no such sample")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "ending", "message"),
    [
        ("None", "stopped", "the program was stopped after 8 steps"),
        ("'1'", "failed", "ValueError: no such sample (train.py:12)"),
    ],
)
def test_ranks_of_torchrun_stop_together_or_fail_with_the_first_error(
    user: Path, workspace: Path, failing: str, ending: str, message: str
) -> None:
    (user / "train.py").write_text(RANKS.replace("FAILING", failing))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    with start_rerun(TriedProgram("train.py", launcher=torchrun), RerunPlan(steps=8), workspace) as running:
        result = running.wait(200)
        plan = running.folder / "plan.json"

    assert (result.ending, result.message) == (ending, message)
    assert started_for(plan) == []
    if ending == "stopped":
        assert sorted(path.name for path in result.folder.glob("rank-*")) == ["rank-0", "rank-1"]
