"""Lines inside DataLoader workers: real workers, forked and spawned, over a dataset with one hot line."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import random
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker

from perfkit.record.samplers.worker_sampler import WorkerSampler
from perfkit.run.records import SHARED

MODULE = """
import time
import torch

class Hot(torch.utils.data.Dataset):
    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        end = time.thread_time() + 0.02
        while time.thread_time() < end: sum(range(2_000))  # the hot line
        return torch.tensor([index, torch.randint(1_000_000, ()).item()])

class Called(Hot):
    def __getitem__(self, index):
        return self.load(index)  # the call

    def load(self, index):
        return super().__getitem__(index)

class Shared(Hot):
    def __init__(self, count, store):
        self.count, self.store = count, store

    def __getitem__(self, index):
        return torch.tensor([index, sum(self.store[key] for key in range(200))])  # another process

class Broken(Hot):
    def __getitem__(self, index):
        raise KeyError("no such picture")
"""
HOT, CALL = (
    1 + next(number for number, line in enumerate(MODULE.splitlines()) if mark in line)
    for mark in ("the hot line", "the call")
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's that a spawned process can import too."""
    name = f"perfkit_test_data_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def epoch(dataset: Any, **options: Any) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, generator=generator, **options)
    return [batch.flatten().tolist() for batch in loader]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_hot_line_of_a_dataset_is_found_inside_its_workers(data: ModuleType, tmp_path: Path, context: str) -> None:
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    batches = epoch(data.Hot(), multiprocessing_context=context)
    sampler.detach()

    rows, (workers,) = sampler.rows(len(batches))
    assert (rows[0].line, rows[0].function, rows[0].owner) == (HOT, "Hot.__getitem__", "user")
    assert (rows[0].worker, rows[0].phase) == ("Hot", "data")
    assert workers.processes == 2
    # 24 samples of 20 ms of processor time: the line is most of what the workers did, and they used the processor.
    assert rows[0].samples > 0.8 * sum(row.samples for row in rows)
    assert workers.busy_ns <= workers.alive_ns
    assert workers.cpu_ns >= 24 * 15_000_000


def test_the_line_that_calls_the_hot_functions_is_known_too(data: ModuleType, tmp_path: Path) -> None:
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    epoch(data.Called())
    sampler.detach()

    rows, _ = sampler.rows(1)
    assert (rows[0].line, rows[0].function) == (HOT, "Hot.__getitem__")
    caller = rows[0].called_from
    assert caller is not None
    assert caller.function == "Called.load"
    calls = {row.called_from.line for row in rows if row.function == "Called.load" and row.called_from is not None}
    assert calls <= {CALL}


def test_a_line_that_asks_a_manager_for_shared_objects_is_in_multiprocessing(data: ModuleType, tmp_path: Path) -> None:
    with multiprocessing.Manager() as manager:
        store = manager.dict({key: key for key in range(200)})
        sampler = WorkerSampler(tmp_path / "workers")
        sampler.attach()
        batches = epoch(data.Shared(40, store))
        sampler.detach()

    rows, _ = sampler.rows(len(batches))
    assert rows[0].function.startswith("Shared.__getitem__")
    assert rows[0].within[SHARED] > 0.8 * rows[0].samples


def test_a_waiting_worker_is_not_busy_and_not_on_the_line_of_the_loop(data: ModuleType, tmp_path: Path) -> None:
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    for _ in DataLoader(data.Hot(6), num_workers=1, prefetch_factor=1):
        time.sleep(0.1)  # the workers wait for this loop
    sampler.detach()

    rows, (workers,) = sampler.rows(6)
    assert workers.busy_ns < 0.7 * workers.alive_ns
    # torch 2.15 imports numpy in the worker.
    assert {row.function for row in rows if row.owner == "user"} <= {"Hot.__getitem__"}


def test_batches_and_random_numbers_of_workers_are_the_same_with_and_without(data: ModuleType, tmp_path: Path) -> None:
    random.seed(1)
    torch.manual_seed(1)
    plain = epoch(data.Hot(8), shuffle=True)
    state = random.getstate(), torch.get_rng_state()

    random.seed(1)
    torch.manual_seed(1)
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    sampled = epoch(data.Hot(8), shuffle=True)
    sampler.detach()

    assert sampled == plain
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])


def test_an_error_in_a_worker_reaches_the_loop(data: ModuleType, tmp_path: Path) -> None:
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    try:
        with pytest.raises(KeyError, match="no such picture"):
            epoch(data.Broken())
    finally:
        sampler.detach()


def test_workers_whose_folder_cannot_be_written_continue(data: ModuleType, tmp_path: Path) -> None:
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    (tmp_path / "workers").rmdir()

    assert len(epoch(data.Hot(4))) == 2
    sampler.detach()
    assert sampler.rows(2) == ((), ())


def test_detaching_restores_torchs_worker_loop_and_removes_the_folder(data: ModuleType, tmp_path: Path) -> None:
    before = worker._worker_loop
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    assert worker._worker_loop is not before
    sampler.detach()
    sampler.detach()

    assert worker._worker_loop is before
    assert list(tmp_path.glob("workers*")) == []


def test_a_forked_child_restores_the_loop_and_leaves_the_folder_to_its_parent(tmp_path: Path) -> None:
    before = worker._worker_loop
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    sampler.forget()
    sampler.detach()

    assert worker._worker_loop is before
    assert (tmp_path / "workers").is_dir()


def test_a_wrapper_that_the_program_put_around_ours_stays(tmp_path: Path) -> None:
    place: Any = worker
    before = place._worker_loop
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()

    def theirs(*args: Any) -> None: ...

    place._worker_loop = theirs
    sampler.detach()
    left, place._worker_loop = place._worker_loop, before
    assert left is theirs


def test_files_of_ended_workers_are_added_up_and_removed(data: ModuleType, tmp_path: Path) -> None:
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    for _ in range(3):
        epoch(data.Hot(4))
        sampler.rows(1)
        assert list((tmp_path / "workers").iterdir()) == []
    sampler.detach()

    assert sampler.rows(6)[1][0].processes == 6


def test_a_worker_that_outlives_the_profile_stops_writing(data: ModuleType, tmp_path: Path) -> None:
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    loader = DataLoader(data.Hot(4), num_workers=2, persistent_workers=True)
    first = len(list(loader))
    sampler.detach()

    assert first == len(list(loader)) == 4
    del loader
    assert not (tmp_path / "workers").exists()


def test_the_private_worker_loop_exists_in_torch(tmp_path: Path) -> None:
    original = worker._worker_loop
    sampler = WorkerSampler(tmp_path / "workers")
    sampler.attach()
    packed = pickle.dumps(worker._worker_loop)
    sampler.detach()

    assert pickle.loads(packed)._loop is original
