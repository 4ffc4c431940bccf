"""What is read of the program's objects, without running its code and without a trace in them."""

from __future__ import annotations

import functools
import gc
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import perfkit
from perfkit.record.program_values import ABSENT, own_attribute
from perfkit.run.reading import read_run


class Base:
    shared = 1
    both = 2

    def method(self) -> int:
        return 1

    def replaced(self) -> int:
        return 2

    @staticmethod
    def static() -> int:
        return 3

    @property
    def computed(self) -> int:
        raise AssertionError("perfkit ran the program's code")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest asks for some
            raise AttributeError(name)
        raise AssertionError("perfkit ran the program's code")


class Held(Base):
    def __init__(self) -> None:
        self.number = 4
        self.both = 5  # type: ignore[misc]
        self.replaced = len  # type: ignore[method-assign, assignment]


class Slotted:
    __slots__ = ("set", "unset")

    def __init__(self) -> None:
        self.set = 6


class Cached:
    @functools.cached_property
    def value(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Held(), "number", 4),
        (Held(), "both", 5),
        (Held(), "replaced", len),
        (Held(), "shared", ABSENT),
        (Held(), "method", ABSENT),
        (Held(), "static", ABSENT),
        (Held(), "computed", ABSENT),
        (Held(), "missing", ABSENT),
        (Slotted(), "set", 6),
        (Slotted(), "unset", ABSENT),
        (Cached(), "value", ABSENT),
        (Base, "shared", 1),
        (Held, "shared", ABSENT),
        (sys, "version", sys.version),
        (torch.nn.Dropout(0.25), "p", 0.25),
        (None, "number", ABSENT),
    ],
)
def test_only_what_an_object_has_of_its_own_is_read(owner: Any, name: str, value: Any) -> None:
    assert own_attribute(owner, name, ABSENT) is value or own_attribute(owner, name, ABSENT) == value


def test_a_cached_property_is_read_once_it_is_computed() -> None:
    owner = Cached()

    assert owner.value == own_attribute(owner, "value")


def has_dictionary(owner: Any, name: str = "number") -> bool:
    """Whether the attributes of an object, of which ``name`` is one, are in a dictionary."""
    return any(type(one) is dict and name in one for one in gc.get_referents(owner))


def test_reading_an_attribute_makes_no_dictionary() -> None:
    owner = Held()
    before = has_dictionary(owner)
    for name in ("number", "both", "replaced", "shared", "method", "static", "computed", "missing"):
        own_attribute(owner, name)
    assert has_dictionary(owner) == before

    if sys.version_info[:2] in ((3, 11), (3, 12)):
        assert not before
        assert vars(owner)
        assert has_dictionary(owner)


class Pages(Dataset[Tensor]):
    def __init__(self) -> None:
        self.codes = {letter: code for code, letter in enumerate("abcdefgh")}
        self.pages = ["abcdefgh" * (1 + index % 3) for index in range(200)]

    def __len__(self) -> int:
        return len(self.pages)

    def encoded(self, page: str) -> list[int]:
        return [self.codes.get(letter, 0) for letter in page]

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self.encoded(self.pages[index])[:8], dtype=torch.float32)


class Batch:
    def __init__(self, samples: list[Tensor]) -> None:
        self.rows = torch.stack(samples)


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.kept: list[Tensor] = []
        self.scale = 0.5

    def mask(self) -> Tensor:
        return torch.tril(torch.ones(32, 32)) * self.scale

    def loss(self, rows: Tensor) -> Tensor:
        total = self.mask().mean()
        for index in range(len(rows)):
            total = total + self.model(rows[index]).square().mean()
        return total

    def step(self, rows: Tensor) -> None:
        loss = self.loss(rows)
        self.kept.append(loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def test_objects_of_a_recorded_program_get_no_dictionary(tmp_path: Path) -> None:
    pages, trainer = Pages(), Trainer()
    before = has_dictionary(pages, "codes"), has_dictionary(trainer, "scale")
    loader = DataLoader(pages, batch_size=4, shuffle=True, collate_fn=Batch)

    with perfkit.profile(tmp_path / "run", quiet=True, report=False, detect_syncs="dry"):
        for _ in range(4):
            for batch in loader:
                trainer.step(batch.rows)

    assert {"window", "lines", "ops", "dry"} <= {row.kind for row in read_run(tmp_path / "run").ranks[0].steps}
    assert (has_dictionary(pages, "codes"), has_dictionary(trainer, "scale")) == before
