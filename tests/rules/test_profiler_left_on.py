"""profiler-left-on: a torch profiler that the program runs all the time; perfkit's own windows are not one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit._location import Location
from perfkit.rules.settings import profiler_left_on

TRAINING = """
import torch
from torch.profiler import profile, schedule

model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps, step=lambda: None):
    for _ in range(steps):
        model(torch.randn(256, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step()


"""
ALWAYS = """with profile(record_shapes=True, profile_memory=True):
    train(60)
"""
SCHEDULED = """with profile(with_stack=True, schedule=schedule(wait=30, warmup=1, active=2, repeat=1)) as prof:
    train(120, prof.step)
"""


def rules_of(folder: Path, how: str) -> list[Any]:
    (folder / "train.py").write_text(TRAINING + how)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "perfkit", "run", "train.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    [run] = (folder / "runs").iterdir()
    return [one for one in perfkit.diagnose(run).findings if one.rule == "profiler-left-on"]


def test_a_profiler_around_the_whole_training_is_reported_at_its_line(tmp_path: Path) -> None:
    [finding] = rules_of(tmp_path, ALWAYS)

    assert "with profile_memory, record_shapes set" in finding.message
    assert finding.change.line == 17
    assert finding.cost_ns is None


@pytest.mark.parametrize("how", ["train(60)\n", SCHEDULED])
def test_windows_of_perfkit_and_a_scheduled_profiler_are_no_finding(tmp_path: Path, how: str) -> None:
    assert rules_of(tmp_path, how) == []


def test_its_flags_are_named_only_where_the_source_sets_them(build: Any) -> None:
    at = Location(file="train.py", line=4, function="emit_nvtx(...)")
    rank = build.rank(settings={"torch.profiler_on": "True"}, calls={"emit_nvtx": (at,)})

    [finding] = build.findings(profiler_left_on, rank)

    assert finding.message == "The program's own torch profiler is on in every step."
    assert finding.change == at
