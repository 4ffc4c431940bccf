"""``perfkit try`` and ``perfkit.try_changes``: real programs, run again with the advice applied."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from perfkit.commands.try_ import parse_duration
from perfkit.errors import UsageError
from perfkit.run.records import Trial
from perfkit.trial.reruns import RerunPlan, TriedProgram
from perfkit.trial.trying import parse_command, try_changes

ROOT = Path(__file__).resolve().parents[2]

#: Each sample takes 3 ms to load and the step 6 ms to compute: one worker hides most of the 24 ms of a batch.
SLOW_LOADER = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.randn(16, generator=torch.Generator().manual_seed(index)), index % 2

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Images(), batch_size=8, shuffle=True)
    for step, (images, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.006)
        torch.save(model.state_dict(), "checkpoint.pt")
"""


def try_(folder: Path, *arguments: str, program: str = SLOW_LOADER) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "perfkit", "try", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
@pytest.mark.alone  # two programs in turns, one of them with two workers
def test_the_advice_is_applied_measured_and_written_as_a_patch_that_applies(tmp_path: Path) -> None:
    done = try_(tmp_path, "--budget", "4m", "--only", "workers=2", "train.py", "--unused", "argument")

    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "checkpoint.pt").exists()
    (file,) = tmp_path.glob("runs/*/trial.json")
    trial = msgspec.json.decode(file.read_bytes(), type=Trial)
    assert trial.together is not None, done.stdout
    assert trial.together.names[0].startswith("workers=")
    # A batch takes 24 ms to load and 6 ms to compute.
    assert trial.together.speedup > 2
    assert trial.together.loss.outcome == "same"
    assert trial.verdict in " ".join(done.stdout.split())
    subprocess.run(["git", "apply", str(file.with_name("trial.patch"))], cwd=tmp_path, check=True)
    assert "num_workers=" in (tmp_path / "train.py").read_text()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import torch\nprint('done')", "must take steps"),
        ("import torch\nraise ValueError('no data here')", "no data here"),
        ("import torch\ninput('name: ')", "input"),
        ("print('no torch')", "must"),
    ],
    ids=["no steps", "an error", "asks for input", "no torch"],
)
def test_a_program_that_cannot_be_tried_is_refused_in_one_line_with_the_reason(
    tmp_path: Path, program: str, reason: str
) -> None:
    done = try_(tmp_path, "--only", "workers=2", "train.py", program=program)

    assert done.returncode == 2
    assert reason in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_folder_that_may_be_written_reaches_the_reruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(program: TriedProgram, plan: RerunPlan, workspace: Path) -> None:
        assert program.writable == ("out",)
        raise Started

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setattr("perfkit.trial.trying.start_rerun", start)
    with pytest.raises(Started):
        try_changes(["train.py"], allow_writes=["out"])


def test_a_change_that_does_not_exist_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = try_(tmp_path, "--only", "worker=2", "train.py")

    assert done.returncode == 2
    assert "did you mean workers" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "launcher", "script", "arguments"),
    [
        (["train.py", "--epochs", "3"], (), "train.py", ("--epochs", "3")),
        (["python", "train.py"], (), "train.py", ()),
        (
            ["torchrun", "--nproc-per-node", "2", "train.py", "-m"],
            ("torchrun", "--nproc-per-node", "2"),
            "train.py",
            ("-m",),
        ),
        (["-m", "package.train", "x"], (), "package.train", ("x",)),
    ],
)
def test_a_command_is_split_into_launcher_script_and_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], launcher, script: str, arguments
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    program = parse_command(words)

    assert (program.launcher, program.script, program.arguments) == (launcher, script, arguments)
    assert program.module == ("-m" in words[:1])


@pytest.mark.parametrize("words", [[], ["torchrun"], ["-m"], ["missing.py"]])
def test_a_command_without_a_script_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"must name a Python script|does not exist"):
        parse_command(words)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "soon", "5 weeks"])
def test_a_budget_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--budget must be a positive time"):
        parse_duration(text)
