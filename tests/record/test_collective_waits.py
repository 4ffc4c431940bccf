"""Rows say how long a rank was blocked in collectives on the host, in which phase, and training never notices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import perfkit
from perfkit.record.hooks import collective_waits
from perfkit.record.hooks.collective_waits import _first_node
from perfkit.record.watchers.process_group import reducer_times
from perfkit.run.merging import merged
from perfkit.run.reading import RankFolder
from perfkit.run.records import Phase, Phases, Step, Waits

MS = 1_000_000

#: Rank 1 is late in its backward; after it both average a number, for which rank 0 is late.
LATE = """
import contextlib, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import perfkit

class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if rank == 1:
            time.sleep(0.12)
        return gradient

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(Late.apply(self.norm(self.first(x))))

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/rendezvous", rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model._set_ddp_runtime_logging_sample_rate(1)
recorded = sys.argv[1] == "recorded"
losses = []
with perfkit.profile("run", schedule=None, quiet=True) if recorded else contextlib.nullcontext():
    for step in range(14):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if rank == 0:
            time.sleep(0.08)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        optimizer.step()
        losses.append(mean.item())
if rank == 0:
    print(*(number.hex() for number in losses))
    data = model._get_ddp_logging_data()
    print(data["backward_comm_time"] - data["backward_compute_comm_overlap_time"])
dist.barrier()
os._exit(0)
"""

SHARDED = """
import os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import perfkit

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/rendezvous", rank=rank, world_size=2)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with perfkit.profile("run", schedule=None, quiet=True):
    for step in range(12):
        if rank == 1:
            time.sleep(0.12)
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.barrier()
os._exit(0)
"""


def rows(folder: Path, rank: int) -> list[Step]:
    """The steps of a rank but the first, which begins before anything is measured."""
    found = RankFolder(folder / "run" / f"rank-{rank}", rank).steps
    return [row for row in found if row.step]


def median_more(first: list[Step], second: list[Step], phase: Phase | None = None) -> float:
    """By how many ms the first rank waits longer than the second, in a phase or in all: the median of the steps."""

    def waited(row: Step) -> int:
        assert row.waited_phases_ns is not None
        return (getattr(row.waited_phases_ns, phase) or 0) if phase is not None else row.waited_ns or 0

    return median(waited(one) - waited(other) for one, other in zip(first, second, strict=True)) / MS


@pytest.fixture(scope="module")
def late(run_ranks: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a run of `LATE`, and the lines that rank 0 printed."""
    folder = tmp_path_factory.mktemp("late")
    return folder, run_ranks(folder, LATE, "recorded")[0].splitlines()


def test_a_rank_that_is_late_in_its_backward_shows_in_the_rows_of_the_other(late: tuple[Path, list[str]]) -> None:
    folder, printed = late

    first, second = rows(folder, 0), rows(folder, 1)
    # It sleeps 120 ms in its backward; then the other one 80 ms before the all-reduce.
    assert median_more(first, second, "backward") > 60
    assert median_more(second, first, "other") > 40
    assert all((row.waited_ns or 0) <= row.wall_ns for row in (*first, *second))
    # The Reducer's own data say the same, of the step before the last: each forward publishes the backward before it.
    before = first[-2].waited_phases_ns
    assert before is not None
    assert before.backward == pytest.approx(int(printed[1]), abs=20 * MS)


def test_the_record_of_a_rank_names_its_group_and_what_the_reducer_measured(late: tuple[Path, list[str]]) -> None:
    record = RankFolder(late[0] / "run" / "rank-0", 0).rank
    assert record is not None
    group = record.process_group
    assert group is not None
    assert (group.backend, group.size) == ("gloo", 2)
    assert group.reducer is not None
    assert group.reducer.exposed_ns > 30 * MS
    assert record.errors == ()


@pytest.mark.slow  # one more run of two processes
def test_losses_are_the_same_bit_for_bit_with_and_without_recording(
    late: tuple[Path, list[str]], run_ranks: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert run_ranks(tmp_path, LATE, "plain")[0].splitlines()[0] == late[1][0]


@pytest.mark.slow
def test_a_late_rank_shows_in_the_rows_of_the_other_under_fsdp(
    run_ranks: Callable[..., list[str]], tmp_path: Path
) -> None:
    run_ranks(tmp_path, SHARDED)

    first, second = rows(tmp_path, 0), rows(tmp_path, 1)
    assert median_more(first, second) > 60
    # It waits in the gathering of the forward, not after the backward.
    assert median_more(first, second, "forward") > 60


@pytest.fixture
def blocking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A group of this process alone that counts as one of several processes over gloo."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(collective_waits, "cpu_backend", lambda: "gloo")
    yield
    distributed.destroy_process_group()


def recorded_rows(folder: Path, steps: int = 4, then: Callable[[], Any] = lambda: None) -> list[Step]:
    """The rows of a training under DistributedDataParallel that calls ``then`` after each backward."""
    with perfkit.profile(folder, schedule=None, quiet=True):
        model = DistributedDataParallel(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            then()
            optimizer.step()
    return RankFolder(folder / "rank-0", 0).steps


@pytest.mark.usefixtures("blocking")
def test_what_the_program_waits_for_counts_for_the_phase_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wait = distributed.distributed_c10d.Work.wait

    def slow(*args: Any) -> Any:
        time.sleep(0.002)
        return wait(*args)

    monkeypatch.setattr(distributed.distributed_c10d.Work, "wait", slow)

    found = recorded_rows(tmp_path / "run", then=lambda: distributed.all_reduce(torch.ones(1)))[1:]

    assert all(row.waited_phases_ns is not None for row in found)
    assert all(((row.waited_phases_ns or Waits()).other or 0) >= 2 * MS for row in found)
    assert distributed.distributed_c10d.Work.wait is slow


def test_a_program_of_one_process_has_no_waits_and_nothing_is_replaced(tmp_path: Path) -> None:
    wait = distributed.distributed_c10d.Work.wait
    model = nn.Linear(4, 1)
    with perfkit.profile(tmp_path / "run", schedule=None, quiet=True) as prof:
        for _ in prof.steps(range(4)):
            model(torch.ones(2, 4)).sum().backward()
            assert distributed.distributed_c10d.Work.wait == wait

    assert {row.waited_ns for row in RankFolder(tmp_path / "run" / "rank-0", 0).steps} == {None}


@pytest.mark.usefixtures("blocking")
def test_waits_on_a_device_are_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = []

    def use_device() -> None:
        steps.append(len(steps))
        if len(steps) > 2:  # a pause has seen a process on a CPU by then
            monkeypatch.setattr(collective_waits, "_env", SimpleNamespace(cuda_in_use=lambda: True))

    found = recorded_rows(tmp_path / "run", then=use_device)

    assert found[-1].waited_ns is None


@pytest.mark.usefixtures("blocking")
def test_a_training_goes_on_where_the_engine_takes_no_callback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = torch.autograd.Variable._execution_engine
    without = SimpleNamespace(run_backward=engine.run_backward)
    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", without)

    found = recorded_rows(tmp_path / "run")

    assert len(found) == 4
    record = RankFolder(tmp_path / "run" / "rank-0", 0).rank
    assert record is not None
    assert "collectives" in record.errors[0]


def test_a_backward_begins_at_its_tensors_or_edges_and_no_iterator_is_consumed() -> None:
    loss = nn.Linear(2, 1)(torch.ones(1, 2)).sum()
    edge = torch.autograd.graph.get_gradient_edge(loss)
    tensors = iter((loss,))

    assert all(_first_node(roots) is loss.grad_fn for roots in (loss, [loss], (torch.ones(1), loss), edge, (edge,)))
    assert _first_node(tensors) is None
    assert next(tensors) is loss


def test_a_wait_before_a_backward_belongs_to_the_forward() -> None:
    waits = object.__new__(collective_waits.CollectiveWaits)
    waits._since = 0

    found = waits.of(3, Phases(forward=50, other=10), {3: {"other": 40, "backward": 5}})

    assert found == Waits(forward=30, other=10, backward=5)
    assert waits.of(4, Phases(), {}) == Waits()


def test_waits_of_merged_rows_add_up_and_a_row_without_any_stays_short() -> None:
    def row(step: int, waits: Waits | None) -> Step:
        return Step(step=step, start_ns=step, wall_ns=9, phases_ns=Phases(backward=9), waited_phases_ns=waits)

    joined = merged(row(0, Waits(backward=3)), row(1, Waits(backward=4, other=1)))

    assert (joined.waited_phases_ns, joined.waited_ns) == (Waits(backward=7, other=1), 8)
    assert msgspec.json.encode(Waits(backward=3)) == b'{"backward":3}'
    assert row(2, None).waited_ns is None
    assert row(2, Waits()).waited_ns == 0


def test_a_torch_that_names_its_logging_data_otherwise_gives_none() -> None:
    class Model:
        def _get_ddp_logging_data(self) -> dict[str, int]:
            return {"backward_time": 3}

    assert reducer_times(Model()) is None
    assert reducer_times(object()) is None
