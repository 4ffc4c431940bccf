"""Changes of loaders, copies and samples."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import perfkit
from perfkit.errors import UsageError
from perfkit.trial.catalog import environment_of, find_changes, parse_changes


class Squares(Dataset[Any]):
    """Samples that count how often they are read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        return torch.tensor([index * index])


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_one_batch_is_loaded_per_epoch_and_comes_as_often_as_the_program_expects() -> None:
    data = Squares()
    with perfkit.changes("one-batch") as applied:
        loader = DataLoader(data, batch_size=8)
        for _ in range(2):
            batches = list(loader)
            assert len(batches) == len(loader) == 25
            assert all(torch.equal(batch, batches[0]) for batch in batches)
    assert data.reads == 16
    assert applied.report()[0].count == 48


def test_one_batch_comes_through_workers_that_are_kept_too() -> None:
    with perfkit.changes("one-batch"):
        loader = DataLoader(Squares(), batch_size=50, num_workers=1, persistent_workers=True)
        assert [len(list(loader)), len(list(loader))] == [4, 4]
    assert torch.equal(torch.cat(list(loader)), torch.arange(200)[:, None] ** 2)


def test_a_batch_that_the_program_writes_into_comes_as_it_was_loaded() -> None:
    with perfkit.changes("one-batch"):
        for batch in DataLoader(TensorDataset(torch.ones(6, 2), torch.zeros(6)), batch_size=2):
            inputs, targets = batch
            assert inputs.eq(1).all()
            inputs.mul_(7)
            targets.add_(1)
            batch.pop()


def test_a_stream_comes_to_its_own_end() -> None:
    with perfkit.changes("one-batch") as applied:
        assert list(DataLoader(Stream(), batch_size=None)) == [0, 1, 2, 3, 4]
    assert applied.report()[0].count == 0


def test_a_dataset_in_memory_answers_with_samples_that_it_has_read() -> None:
    data = Squares()
    with perfkit.changes("dataset-in-memory"):
        batches = list(DataLoader(data, batch_size=10, shuffle=True))
        assert sum(map(len, batches)) == 200
        assert data.reads == 64
    list(DataLoader(data, batch_size=10))
    assert data.reads == 264


def test_a_dataset_that_is_no_class_of_the_program_is_left_alone() -> None:
    with perfkit.changes("dataset-in-memory") as applied:
        assert [*map(int, DataLoader([1, 2, 3], batch_size=None))] == [1, 2, 3]
    assert applied.report()[0].count == 0


def test_loaders_that_make_batches_get_another_size_and_others_do_not() -> None:
    data = TensorDataset(torch.zeros(32, 1))
    sampler = torch.utils.data.BatchSampler(range(32), 4, drop_last=False)
    with perfkit.changes("batch-size=8") as applied:
        sizes = [DataLoader(data, 4).batch_size, DataLoader(data).batch_size]
        assert sizes == [8, 8]
        assert DataLoader(data, batch_size=None).batch_size is None
        assert [len(one) for (one,) in DataLoader(data, batch_sampler=sampler)] == [4] * 8
    assert applied.report()[0].count == 2


def test_batches_and_weights_of_float64_become_float32_and_training_goes_on() -> None:
    data = TensorDataset(torch.randn(12, 3, dtype=torch.float64), torch.randn(12, 1, dtype=torch.float64))
    model = torch.nn.Linear(3, 1).double()
    optimizer = torch.optim.AdamW(model.parameters())
    with perfkit.changes("float32-batches"):
        for inputs, targets in DataLoader(data, batch_size=4):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert {inputs.dtype, targets.dtype, loss.dtype, model.weight.grad.dtype} == {torch.float32}
    assert optimizer.state[model.weight]["exp_avg"].dtype == torch.float32


@pytest.fixture
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")


@pytest.mark.usefixtures("_cuda")
def test_only_copies_from_pinned_memory_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, seen = torch.ones(2), []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor is pinned)
    for name in ("to", "copy_"):
        monkeypatch.setattr(torch.Tensor, name, lambda *args, **kwargs: seen.append(kwargs.get("non_blocking")))
    with perfkit.changes("non-blocking-copies") as applied:
        pinned.to("cuda")
        torch.empty(2).copy_(pinned)
        torch.ones(2).to("cuda")
        pinned.to("cuda", non_blocking=False)
        pinned.to("cuda", torch.float32, False)
        applied.suspend()
        pinned.to("cuda")
    assert seen == [True, True, None, False, None, None]


def read_late(values: list[float]) -> list[float]:
    return [torch.tensor(value).item() for value in values]


def test_a_number_that_is_read_late_is_that_of_the_call_before_and_other_lines_read_theirs() -> None:
    line = inspect.getsourcelines(read_late)[1] + 1
    file = os.path.basename(__file__)
    with perfkit.changes(f"late-item={file}:{line}") as applied:
        assert read_late([1.0, 2.0, 3.0]) == [1.0, 1.0, 2.0]
        assert torch.tensor(9.0).item() == 9.0
    assert applied.report()[0].count == 3


def test_a_tensor_that_changes_after_it_was_read_answers_with_what_it_was() -> None:
    total, seen = torch.zeros(()), []
    line = inspect.currentframe().f_lineno + 4  # type: ignore[union-attr]
    with perfkit.changes(f"late-item={__file__}:{line}"):
        for _ in range(3):
            total += 1
            seen.append(float(total))
    assert seen == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("value", ["", "=train.py", "=58", "=train.py:x"])
def test_a_line_is_written_with_its_file(value: str) -> None:
    with pytest.raises(UsageError, match=r"must have a line of the program, as in late-item=train\.py:58; got"):
        parse_changes([f"late-item{value}"])


# -- the environment of a program


def test_variables_are_set_before_the_program_starts_beside_those_that_it_has() -> None:
    chosen = parse_changes(["expandable-segments,launch-blocking-off,tf32"])
    before = {"CUDA_LAUNCH_BLOCKING": "1", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:False"}
    found = environment_of(chosen, before)
    conf = "max_split_size_mb:64,expandable_segments:True"
    assert found == {"CUDA_LAUNCH_BLOCKING": "0", "PYTORCH_ALLOC_CONF": conf, "PYTORCH_CUDA_ALLOC_CONF": conf}
    assert environment_of(chosen, found) == found
    assert environment_of(parse_changes(["launch-blocking-off"]), {}) == {}


@pytest.mark.usefixtures("_cuda")
def test_a_process_that_runs_already_refuses_what_must_be_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(UsageError, match=r"before the program starts: CUDA_LAUNCH_BLOCKING=0"):
        perfkit.changes("launch-blocking-off").__enter__()
    with pytest.raises(UsageError, match=r"before the program starts: PYTORCH_ALLOC_CONF=expandable_segments:True"):
        perfkit.changes("expandable-segments").__enter__()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    with perfkit.changes("launch-blocking-off") as applied:
        assert applied.report()[0].count == 1


# -- computed


@pytest.mark.parametrize("change", [one for one in find_changes().values() if one.kind == "computed"])
def test_what_remains_of_a_cost_is_computed_and_the_change_is_not_applied(change: Any) -> None:
    assert change.remaining(10) == pytest.approx(0.1)
    with pytest.raises(UsageError, match="its saving is computed from a run without it"):
        perfkit.changes(f"{change.id}=10").__enter__()
    with pytest.raises(UsageError, match="a whole number from 2 on, as in"):
        parse_changes([f"{change.id}=1"])
