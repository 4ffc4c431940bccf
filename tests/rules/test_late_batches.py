"""input-bound: workers keep up on average, and a batch that takes long now and then finds their queue too short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perfkit
from perfkit._location import Location
from perfkit.measures.results.loop import LoopPart, LoopTime
from perfkit.measures.results.steps import SlowStep, Throughput
from perfkit.rules.data import input_bound
from perfkit.rules.python import rare_steps
from perfkit.run.records import Lines, Rank, Workers

MS = 1_000_000

TRAINING = """
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, index):
        time.sleep(0.15 if index % 30 == 17 else 0.004)
        return torch.zeros(64)


model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Records(), num_workers=2)
for batch in loader:
    time.sleep(0.008)
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def measures(
    build: Any, *, busy: int = 40, late: int = 6, longest: float = 110, passes: int = 1, usual: float = 0.3
) -> tuple[Any, ...]:
    """A step of 10 ms whose batch takes ``usual`` ms, and ``late`` steps that wait."""
    rank: Rank = build.rank(workers=2)
    made = Location(file="train.py", line=20, function="DataLoader(...)", owner="user")
    loader = msgspec.structs.replace(rank.loaders[0], created_at=made, iterators=passes, prefetch_factor=2)
    workers = Workers(
        dataset="Reviews", processes=2, samples=99, alive_ns=100 * MS, busy_ns=busy * MS, cpu_ns=busy * MS
    )
    slow = SlowStep(step=90, wall_ns=round((10 + longest) * MS), phase="data", beyond_ns=round(longest * MS))
    typical = LoopPart(use="typical", total_ns=2_000 * MS, steps=200)
    rare = LoopPart(use="irregular", total_ns=late * 100 * MS, steps=late, phase="data")
    return (
        build.step(10, data=usual, forward=10 - usual),
        build.mean_step(13, data=usual + 3, forward=10 - usual),
        msgspec.structs.replace(rank, loaders=(loader,)),
        Lines(period_ns=MS, steps=200, workers=(workers,)),
        LoopTime(total_ns=typical.total_ns + rare.total_ns, steps=200, typical_ns=10 * MS, parts=(typical, rare)),
        Throughput(
            steps=200, steps_per_s=1, samples_per_s=None, tokens_per_s=None, p50_ns=1, p90_ns=1, p99_ns=1,
            slowest=(slow,), source="steps.jsonl",
        ),
    )  # fmt: skip


def test_the_advised_queue_lasts_for_the_longest_wait(build: Any) -> None:
    [finding] = build.findings(input_bound, *measures(build))

    # 110 ms are 11 steps of 10 ms; each step of the factor is two batches.
    assert "prefetch_factor=8" in (finding.advice or "")
    assert "16 batches" in (finding.advice or "")
    assert finding.edit.arguments == {"prefetch_factor": "8"}
    assert finding.cost_ns == 3 * MS
    assert finding.saving_low_ns == round(0.75 * 3 * MS)
    assert finding.change.line == 20


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param({"busy": 90}, id="workers that never rest need help, not a longer queue"),
        pytest.param({"late": 2}, id="two long steps may be chance"),
        pytest.param({"late": 6, "passes": 5}, id="each pass over the loader begins with a wait"),
        pytest.param({"longest": 9_000}, id="no queue of a sensible length lasts for this"),
    ],
)
def test_a_longer_queue_is_not_advised_where_it_would_not_help(build: Any, healthy: dict[str, Any]) -> None:
    assert build.findings(input_bound, *measures(build, **healthy)) == []


def test_a_step_that_always_waits_for_its_batch_needs_more_than_a_longer_queue(build: Any) -> None:
    [finding] = build.findings(input_bound, *measures(build, busy=70, usual=7))

    assert finding.cost_ns > 6 * MS
    assert "prefetch_factor" not in finding.edit.arguments


def test_late_batches_in_a_rhythm_are_reported_once(build: Any) -> None:
    *others, loop, times = measures(build)
    rare = msgspec.structs.replace(loop.parts[1], use="rare", every=33, longer=11.0)
    loop = msgspec.structs.replace(loop, parts=(loop.parts[0], rare))

    assert build.findings(rare_steps, *others, loop, times) == []
    assert len(build.findings(input_bound, *others, loop, times)) == 1


def test_a_training_whose_batches_are_sometimes_late_is_advised_a_longer_queue(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "perfkit", "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr

    [run] = (tmp_path / "runs").iterdir()
    findings = [one for one in perfkit.diagnose(run).findings if one.rule == "input-bound"]

    assert [one.edit.arguments.keys() for one in findings if one.edit] == [{"prefetch_factor"}]
    assert 4 <= int(findings[0].edit.arguments["prefetch_factor"]) <= 20
