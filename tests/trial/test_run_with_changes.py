"""``perfkit run --with``: the program runs with a change that it does not contain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perfkit.run.reading import RankFolder, read_run

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4)
for inputs, targets in loader:
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("workers", loader.num_workers, "fused", optimizer.param_groups[0]["fused"])
"""


def run(folder: Path, *options: str, program: str = TRAIN) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "perfkit", "run", "--quiet", "--out", "run", "--schedule", "1000000,0,1", *options]
    return subprocess.run(
        [*command, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def rank(folder: Path) -> RankFolder:
    return read_run(folder / "run").ranks[0]


def test_a_change_is_applied_and_the_run_says_where_it_took_effect(tmp_path: Path) -> None:
    done = run(tmp_path, "--with", "workers=1,fused-optimizer", "--with", "no-anomaly-detection")

    assert done.returncode == 0, done.stderr
    assert "workers 1 fused True" in done.stdout
    recorded = rank(tmp_path).changes
    assert recorded is not None
    found = {one.change: one for one in recorded.changes}
    assert found["workers=1"].places[0].line == 1 + TRAIN.splitlines().index(
        "loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4)"
    )
    assert found["fused-optimizer"].count == 1
    assert "no-anomaly-detection had no effect" in done.stderr


def test_without_changes_nothing_is_written_about_them(tmp_path: Path) -> None:
    run(tmp_path)
    assert rank(tmp_path).changes is None


def test_the_loss_of_each_step_is_logged_without_an_edit(tmp_path: Path) -> None:
    done = run(tmp_path, "--log-loss")

    assert done.returncode == 0, done.stderr
    losses = [row.loss for row in rank(tmp_path).steps]
    assert len(losses) == 16
    assert all(loss is not None and loss > 0 for loss in losses)


def test_a_loss_that_is_no_real_number_is_not_logged_and_training_goes_on(tmp_path: Path) -> None:
    complex_loss = TRAIN.replace("loss.backward()", "(loss * 1j).backward(torch.tensor(-1j))")
    done = run(tmp_path, "--log-loss", program=complex_loss)

    assert done.returncode == 0, done.stderr
    assert "workers 0" in done.stdout
    assert {row.loss for row in rank(tmp_path).steps} == {None}


def test_a_folder_that_goes_away_does_not_change_the_exit_code_of_the_program(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--with", "workers=0", program=TRAIN + "import shutil\nshutil.rmtree('run')\nraise SystemExit(7)\n"
    )

    assert done.returncode == 7, done.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("worker=2", "did you mean workers"),
        ("workers=x", "the change workers must have a whole number"),
    ],
)
def test_a_change_that_does_not_exist_ends_the_command_before_the_program(
    tmp_path: Path, option: str, message: str
) -> None:
    done = run(tmp_path, "--with", option)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(torch.version.cuda is not None, reason="this build of torch has CUDA")
def test_a_change_that_cannot_be_applied_ends_the_program_at_its_import_of_torch(tmp_path: Path) -> None:
    done = run(tmp_path, "--with", "pinned-memory")
    assert done.returncode == 2
    assert "pinned-memory cannot be applied: this build of torch has no CUDA" in done.stderr
    assert done.stdout == ""
