"""`perfkit nsys` with a real Nsight Systems on a real training."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from perfkit.measures.gathering import measure
from perfkit.measures.results.measurements import TraceFacts

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import sys
import torch, perfkit
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(torch.ones(80, 8)), batch_size=4):
    with perfkit.range("forward pass"):
        loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
sys.exit(int(sys.argv[1]))
"""


def run(nsys: str, folder: Path, *options: str, exit_code: int) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN)
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PERFKIT_NSYS": nsys}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    command = [sys.executable, "-m", "perfkit", "nsys", "--schedule", "4,1,3", "--out", "run", *options]
    return subprocess.run(
        [*command, "--", sys.executable, "train.py", str(exit_code)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def counts(export: Path) -> dict[str, int]:
    """How often each range is in an export; perfkit's own reader counts those of the window."""
    with closing(sqlite3.connect(export)) as database:
        names = database.execute("select coalesce(text, value) from NVTX_EVENTS left join StringIds on id = textId")
        return Counter(name for (name,) in names if name in ("perfkit.window", "forward pass"))


def exported(folder: Path) -> Path:
    """What was exported before it was cut to the window."""
    (export,) = (folder / "cache" / "perfkit" / "nsys").glob("*.sqlite")
    return export


def test_the_ranges_and_the_window_of_a_training_recorded_whole_are_in_its_diagnosis(
    tmp_path: Path, real_nsys: str
) -> None:
    done = run(real_nsys, tmp_path, exit_code=3)
    diagnosis = msgspec.json.decode((tmp_path / "run" / "diagnosis.json").read_bytes())

    assert done.returncode == 3, done.stderr
    assert "trained" in done.stdout
    assert "this program runs under nsys" in done.stderr
    assert counts(exported(tmp_path)) == {"perfkit.window": 1, "forward pass": 20}
    assert counts(tmp_path / "run" / "rank-0" / "window-0.sqlite") == {"perfkit.window": 1, "forward pass": 3}
    # The run's own steps, and nsys' recording where its window's trace would be.
    assert diagnosis["step"]["steps"] > 0
    assert diagnosis["figures"]["trace"]["format"] == "nsys"
    assert "steps.jsonl" in done.stdout
    again = measure(tmp_path / "run")
    assert again.get(TraceFacts) is not None
    assert (again.get(TraceFacts).format, again.get(TraceFacts).steps) == ("nsys", 3)


@pytest.mark.slow
def test_without_cuda_too_nsys_records_only_the_window_if_requested(tmp_path: Path, real_nsys: str) -> None:
    done = run(real_nsys, tmp_path, "--capture-range", "nvtx", exit_code=0)

    assert done.returncode == 0, done.stderr
    assert counts(exported(tmp_path))["forward pass"] == 3
    assert counts(tmp_path / "run" / "rank-0" / "window-0.sqlite")["forward pass"] == 3
