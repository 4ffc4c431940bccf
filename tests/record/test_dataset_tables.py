"""What is recorded of a `datasets.Dataset`: its format, its columns, the numbers of a row, and what collates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from perfkit.record.hooks.dataset_tables import name_of, table_of
from perfkit.record.hooks.loop_observer import LoopObserver
from perfkit.run.records import DatasetTable, Loader


def rows() -> Any:
    return datasets.Dataset.from_dict({"signal": [[0.5] * 30] * 8, "label": [1] * 8, "name": ["a"] * 8})


@pytest.fixture
def recorded() -> Iterator[Callable[[Any], Loader]]:
    """Goes through a loader, and returns what is recorded of it."""
    observers = []

    def go_through(loader: Any) -> Loader:
        observer = LoopObserver(on_optimizer=id, on_samples=id, on_batch=id)
        observers.append(observer)
        observer.attach()
        for _ in loader:
            pass
        observer.detach()
        [known] = observer.loaders.values()
        return known

    yield go_through
    for observer in observers:
        observer.detach()


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (rows(), DatasetTable(format="python", columns=3, numbers=31)),
        (rows().with_format("torch"), DatasetTable(format="torch", columns=3, numbers=31)),
        (rows().with_format("numpy", columns=["signal"]), DatasetTable(format="numpy", columns=1, numbers=30)),
        (Subset(Subset(rows(), [1, 2, 3, 4]), [0, 1]), DatasetTable(format="python", columns=3, numbers=31)),
    ],
)
def test_a_loader_has_the_table_of_its_dataset(recorded: Any, dataset: Any, expected: DatasetTable) -> None:
    loader = recorded(DataLoader(dataset, batch_size=2))

    assert loader.table == expected
    assert loader.collate_fn == "torch.utils.data._utils.collate.default_collate"


def test_other_datasets_have_no_table(recorded: Any) -> None:
    class Rows(Dataset[Any]):
        format: Any = {"type": None, "columns": []}

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return torch.ones(3)

    class Kept(datasets.Dataset):  # type: ignore[misc]
        """A class of the user's may do anything in its attributes."""

    own = Kept(rows().data)

    assert recorded(DataLoader(Rows())).table is None
    assert table_of(own) is None
    assert table_of(rows().to_iterable_dataset()) is None
    assert table_of(None) is None


def test_without_the_library_no_dataset_has_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = rows()
    monkeypatch.delitem(sys.modules, "datasets.arrow_dataset")

    assert table_of(dataset) is None
    assert "datasets.arrow_dataset" not in sys.modules


@pytest.mark.parametrize(
    ("columns", "types", "numbers"),
    [
        ({"x": [[1, 2, 3]], "y": [4.0], "z": [True]}, None, 5),
        ({"x": [[[1, 2], [3, 4]]], "y": [4.0]}, None, None),
        ({"x": [["a", "b"]], "y": ["c"]}, None, 0),
        ({"x": [[[1, 2], [3, 4]]]}, {"x": datasets.Array2D((2, 2), "float32")}, 4),
        ({"x": [[{"a": 1}]]}, None, None),
        ({"x": [], "y": []}, {"x": datasets.List(datasets.Value("int64")), "y": datasets.Value("int64")}, None),
    ],
)
def test_the_numbers_of_a_row_are_those_of_its_lists(
    columns: dict[str, Any], types: dict[str, Any] | None, numbers: int | None
) -> None:
    features = datasets.Features(types) if types else None

    found = table_of(datasets.Dataset.from_dict(columns, features=features))

    assert found == DatasetTable(format="python", columns=len(columns), numbers=numbers)


def test_an_error_of_the_dataset_does_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("not to be read")

    dataset = rows()
    monkeypatch.setattr(datasets.Dataset, "features", property(fail))
    assert table_of(dataset) == DatasetTable(format="python", columns=3, numbers=None)

    monkeypatch.setattr(datasets.Dataset, "format", property(fail))
    assert table_of(dataset) is None


class Collator:
    def __call__(self, samples: list[Any]) -> Any:
        return samples


def test_what_collates_is_named_by_its_function_or_its_class() -> None:
    assert name_of(rows) == f"{__name__}.rows"
    assert name_of(Collator()) == f"{__name__}.Collator"
    assert name_of(None) is None
