"""`perfkit run` of a script that starts its ranks itself: they are recorded, and the script's waiting is no step."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.run.reading import read_run
from tests.commands.conftest import Cli

#: Two ranks over gloo that reduce each gradient by itself; "first" trains before it starts them.
SCRIPT = """
import os
import sys
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

def train(rank, folder, steps):
    if folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for one in model.parameters():
            if folder:
                dist.all_reduce(one.grad)
        optimizer.step()
    if "raise" in sys.argv and rank == 1:
        raise ValueError("the rank's own")
    if folder:
        dist.barrier()
        dist.destroy_process_group()
    os.write(1, f"rank {rank} is done\\n".encode())  # one write: ranks share the pipe

if __name__ == "__main__":
    if "first" in sys.argv:
        train(0, "", 30)
    with tempfile.TemporaryDirectory() as folder:
        method = "fork" if "fork" in sys.argv else "spawn"
        mp.start_processes(train, args=(folder, 60), nprocs=2, start_method=method)
    print("all are done")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """The script, in the folder in which the command runs."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


def test_ranks_that_a_script_spawns_are_recorded_into_its_folder(cli: Cli, script: str, tmp_path: Path) -> None:
    ran = cli("run", "--out", "run", script)

    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split("\n")) == ["", "all are done", "rank 0 is done", "rank 1 is done"]
    ranks = read_run(tmp_path / "run").ranks
    facts = [one.rank for one in ranks.values() if one.rank is not None]
    assert [(one.rank, one.process_group and one.process_group.size) for one in facts] == [(0, 2), (1, 2)]
    assert all(sum(row.steps for row in one.steps) == 60 for one in ranks.values())
    assert "2 ranks train over gloo" in " ".join(ran.stderr.split())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_change_applies_in_the_ranks_which_say_what_became_of_it(
    method: str, cli: Cli, script: str, tmp_path: Path
) -> None:
    ran = cli("run", "--out", "run", "--with", "fused-optimizer", script, method)

    assert ran.returncode == 0, ran.stderr
    assert "had no effect" not in ran.stderr
    found = [rank.changes.changes for rank in read_run(tmp_path / "run").ranks.values() if rank.changes is not None]
    assert [[(one.change, one.count) for one in changes] for changes in found] == [[("fused-optimizer", 1)]] * 2


def test_an_error_of_a_rank_is_the_scripts_own(cli: Cli, script: str, tmp_path: Path) -> None:
    ran = cli("run", "--out", "run", script, "raise")

    assert ran.returncode == 1
    assert "ValueError: the rank's own" in ran.stderr
    assert "all are done" not in ran.stdout


def test_a_script_that_has_trained_before_keeps_its_own_recording(cli: Cli, script: str, tmp_path: Path) -> None:
    ran = cli("run", "--out", "run", script, "first")

    assert ran.returncode == 0, ran.stderr
    [only] = read_run(tmp_path / "run").ranks.values()
    assert only.rank is not None
    assert (only.rank.process_group, only.rank.ending) == (None, "finished")
