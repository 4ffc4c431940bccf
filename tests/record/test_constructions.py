"""The user's lines that made a DataLoader, an optimizer, a compiled function."""

from __future__ import annotations

import gc
import inspect
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from perfkit._patches import Patches
from perfkit.record.hooks import constructions
from perfkit.record.hooks.constructions import compiled_at, made_at, watch_constructions


class OwnLoader(DataLoader[Any]):
    def __init__(self, data: Any) -> None:
        super().__init__(data, batch_size=2)


@pytest.fixture(autouse=True)
def patches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Patches]:
    monkeypatch.setattr(constructions, "_compiled", {})
    patches = Patches()
    watch_constructions(patches)
    yield patches
    patches.undo()


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def called_in_library(source: str, **names: Any) -> Any:
    """The value of the source's function ``make``, as if it stood in a library."""
    exec(compile(source, "/x/site-packages/trainer/loop.py", "exec"), names)
    return names["make"]()


def place_of(thing: Any) -> tuple[int | None, str | None, str]:
    place = made_at(thing)
    assert place is not None
    assert place.file == __file__
    return place.line, place.function, place.owner


def test_the_iterator_of_a_loader_knows_the_line_that_made_the_loader() -> None:
    loader, line = DataLoader([1, 2, 3]), here()

    assert place_of(iter(loader)) == (line, "DataLoader(...)", "user")


def test_the_line_is_the_one_that_calls_a_subclass_not_its_constructor() -> None:
    loader, line = OwnLoader([1, 2]), here()

    assert place_of(loader) == (line, "OwnLoader(...)", "user")


def test_an_optimizer_knows_its_line() -> None:
    optimizer, line = torch.optim.Adam([torch.ones(1, requires_grad=True)]), here()

    assert place_of(optimizer) == (line, "Adam(...)", "user")


def test_what_a_library_makes_has_the_line_that_called_the_library_and_its_owner() -> None:
    source = "def make():\n    return DataLoader([1])\n"

    loader, line = called_in_library(source, DataLoader=DataLoader), here()

    assert place_of(loader)[1:] == ("make(...)", "trainer")
    assert line is not None


def test_a_loader_that_a_library_makes_again_keeps_the_users_line() -> None:
    loader, line = DataLoader([1, 2]), here()

    again = called_in_library("def make():\n    return type(old)(old.dataset)\n", old=loader)

    assert place_of(again) == (line, "DataLoader(...)", "user")


def test_a_compiled_module_knows_the_line_of_torch_compile() -> None:
    model = nn.Linear(2, 2)
    code = nn.Linear.forward.__code__
    _, line = torch.compile(model, backend="eager"), here()
    torch.compile(here, backend="eager")

    place = compiled_at(code.co_filename, code.co_firstlineno)

    assert place is not None
    assert (place.file, place.line, place.function) == (__file__, line, "torch.compile(...)")
    assert compiled_at("other.py", 1) is None


def test_the_only_call_of_torch_compile_compiled_everything() -> None:
    nn.Linear(2, 2).compile(backend="eager")

    assert compiled_at("other.py", 1) is not None


def test_what_was_made_before_has_no_line_and_nothing_is_kept_of_what_is_gone(patches: Patches) -> None:
    patches.undo()
    loader = DataLoader([1])
    watch_constructions(patches)

    assert made_at(iter(loader)) is None

    DataLoader([1])
    gc.collect()
    kept = [reference() for reference, _ in constructions._made.values()]
    assert not [one for one in kept if isinstance(one, DataLoader)]


def test_loaders_pickle_and_show_their_signature_as_before(patches: Patches) -> None:
    shown = inspect.signature(DataLoader.__init__)
    loader = pickle.loads(pickle.dumps(DataLoader([1, 2])))
    patches.undo()

    assert list(loader) == [1, 2]
    assert inspect.signature(DataLoader.__init__) == shown


def test_an_error_of_perfkit_does_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constructions, "_place", lambda *_: SimpleNamespace().missing)

    assert len(DataLoader([1, 2])) == 2
