"""Real runs in which the typical step hides the run: a rollout every 16 steps, a graph and a list that grow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.diagnosis import Diagnosis, diagnose

pytestmark = pytest.mark.alone

START = """
import time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(512, 64)

def batches(count):
    for step in range(count):
        yield step, data[torch.randint(0, 512, (32,))]

def update(loss):
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
"""

ROLLOUT = """
def rollout():
    with torch.no_grad():
        for _ in range(20):
            time.sleep(0.015)
            model(data[:1])

def main():
    for step, batch in batches(150):
        if step % 16 == 15:  # the line
            rollout()
        update(model(batch).square().mean())

main()
"""

GRAPH = """
class Slow(torch.autograd.Function):  # stands for work on large tensors, and takes as long on a busy machine
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.0004)  # the line, or the one that calls the backward
        return grad

def main():
    total = torch.zeros(())
    for step, batch in batches(130):
        loss = model(batch).square().mean()
        total = Slow.apply(total + 1e-9 * loss)
        optimizer.zero_grad()
        total.backward(retain_graph=True)  # the line
        for parameter in model.parameters():
            parameter.data.sub_(1e-3 * parameter.grad)
        optimizer.zero_grad()
        optimizer.step()

main()
"""

LIST = """
def smoothed(history):
    time.sleep(0.0004 * len(history))  # the line; it stands for a walk, and takes as long on a busy machine

def main():
    history = []
    for step, batch in batches(150):
        loss = model(batch).square().mean()
        update(loss)
        history.append(loss.item())
        smoothed(history)

main()
"""


def run(folder: Path, program: str) -> tuple[Diagnosis, set[int]]:
    """The diagnosis of a run of this program, and the numbers of its lines that are marked."""
    text = START + program
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "perfkit", "run", "--out", "run", "train.py"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    return diagnose(folder / "run"), {i for i, one in enumerate(text.splitlines(), 1) if "# the line" in one}


def test_a_rollout_in_every_16th_step_is_the_first_finding_at_the_line_that_says_how_often(tmp_path: Path) -> None:
    found, lines = run(tmp_path, ROLLOUT)

    first = found.findings[0]
    assert first.rule == "rare-steps", found.findings
    assert first.message.startswith("Every 16th step takes")
    assert first.change is not None
    assert first.change.line in lines
    assert first.spent is not None
    assert first.spent.function == "rollout"


@pytest.mark.parametrize("program", [GRAPH, LIST], ids=["graph", "list"])
def test_what_grows_is_the_first_finding_at_the_line_in_which_its_time_passes(tmp_path: Path, program: str) -> None:
    found, lines = run(tmp_path, program)

    first = found.findings[0]
    assert first.rule == "growing-step", found.findings
    assert first.spent is not None
    assert first.spent.line in lines
    assert not [one for one in found.findings if one.rule == "memory-growth" and one.follows is None]
