"""Programs without a loader or an optimizer, under ``perfkit run``: what their steps are, and what the verdict says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.run.reading import read_run
from perfkit.run.records import Rank


def record(folder: Path, text: str) -> tuple[Rank, Diagnosis]:
    script = folder / "program.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "run", "--quiet", "--out", "x", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    rank = read_run(folder / "x").ranks[0].rank
    assert rank is not None
    assert not rank.errors
    return rank, diagnose(folder / "x")


def test_a_program_without_steps_is_diagnosed_by_line(tmp_path: Path) -> None:
    rank, diagnosis = record(
        tmp_path,
        "import time\nimport torch\ndef ask():\n    time.sleep(0.1)\nfor turn in range(10):\n    ask()\n",
    )

    assert rank.program is not None
    assert rank.program.cpu_ns < rank.program.wall_ns
    assert rank.step_boundary is not None
    assert (rank.step_boundary.by, rank.started_by) == ("program", "perfkit run")
    assert "program.py:4" in diagnosis.verdict
    assert "waiting" in diagnosis.verdict
    assert "Cannot tell" not in diagnosis.verdict
    assert any("with perfkit.profile()" in sentence for sentence in diagnosis.missing)


def test_calls_of_a_model_in_evaluation_mode_point_to_latency(tmp_path: Path) -> None:
    rank, diagnosis = record(
        tmp_path,
        """
import torch
class Planner(torch.nn.Linear):
    pass
planner = Planner(64, 64).eval()
state = torch.ones(64, 64)
with torch.inference_mode():
    for _ in range(60):
        state = planner(state).tanh()
""",
    )

    assert rank.step_boundary is not None
    assert (rank.step_boundary.by, rank.step_boundary.module) == ("module", "Planner")
    assert rank.step_boundary.called_at is not None
    assert rank.step_boundary.called_at.line == 9
    assert rank.steps == 60 - 8
    assert any("perfkit latency" in sentence for sentence in diagnosis.missing)


@pytest.mark.parametrize("by", ["backward", "grad"])
def test_a_hand_written_update_has_a_step_per_backward(tmp_path: Path, by: str) -> None:
    grad = (
        "loss.backward()\n    grad = weight.grad" if by == "backward" else "(grad,) = torch.autograd.grad(loss, weight)"
    )
    rank, _ = record(
        tmp_path,
        f"""
import torch
weight = torch.ones(64, requires_grad=True)
for _ in range(40):
    loss = (weight * 2).square().sum()
    {grad}
    with torch.no_grad():
        weight -= 0.001 * grad
        weight.grad = None
""",
    )

    assert rank.step_boundary is not None
    assert rank.step_boundary.by == "backward"
    assert rank.steps == 39


def test_a_training_loop_in_another_thread_is_recorded_with_its_lines(tmp_path: Path) -> None:
    rank, diagnosis = record(
        tmp_path,
        """
import threading, time
import torch
from torch.utils.data import DataLoader
def train():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(torch.ones(400, 8), batch_size=8):
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.02)
thread = threading.Thread(target=train)
thread.start()
thread.join()
""",
    )

    assert rank.steps >= 48
    assert rank.step_boundary is not None
    assert rank.step_boundary.by == "loader"
    assert diagnosis.figures.lines[0].line == 11
