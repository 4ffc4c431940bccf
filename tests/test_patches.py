"""Patches: exact restore, also of inherited attributes, later wrappers, other orders, and after errors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit._patches import Patches, installed


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    @staticmethod
    def static() -> str:
        return "static"

    def method(self) -> str:
        return "method"


def around(original: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: f"<{original(*args)}>"


def test_each_attribute_gets_its_exact_value_back() -> None:
    before, patches = dict(vars(Owner)), Patches()

    patches.set(Owner, "static", lambda: "replaced")
    patches.set(Owner, "inherited", lambda self: "replaced")
    patches.wrap(Owner, "method", around)
    assert Owner().inherited() == "replaced"
    assert Owner().method() == "<method>"

    patches.undo()
    assert dict(vars(Owner)) == before
    assert not patches


def test_a_method_of_one_object_is_wrapped_and_its_class_is_untouched() -> None:
    wrapped, other, patches = Owner(), Owner(), Patches()

    patches.wrap(wrapped, "method", around)
    assert (wrapped.method(), other.method()) == ("<method>", "method")

    patches.undo()
    assert vars(wrapped) == {}


def test_a_missing_attribute_is_not_wrapped() -> None:
    owner, patches = SimpleNamespace(none=None), Patches()

    patches.wrap(owner, "missing", around)
    patches.wrap(owner, "none", around)

    assert vars(owner) == {"none": None}
    assert not patches


def test_a_later_wrapper_of_the_program_stays() -> None:
    owner, patches = Owner(), Patches()
    patches.wrap(owner, "method", around)
    ours: Any = owner.method
    owner.method = theirs = lambda: f"theirs {ours()}"  # type: ignore[method-assign]

    patches.undo()

    assert vars(owner)["method"] is theirs
    assert owner.method() == "theirs <method>"


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_several_patches_of_one_attribute_end_in_any_order(order: tuple[int, ...]) -> None:
    owner, layers = Owner(), (Patches(), Patches(), Patches())
    for patches in layers:
        patches.wrap(owner, "method", around)
    assert owner.method() == "<<<method>>>"

    for number in order:
        layers[number].undo()

    assert vars(owner) == {}


def test_installed_lists_what_is_in_place() -> None:
    patches = Patches()
    patches.set(Owner, "method", lambda self: "")
    patches.set(Owner(), "method", lambda: "")
    patches.set(gc, "freeze", lambda: None)
    patches.add("a filter", lambda: None)

    assert installed() == [f"{__name__}.Owner.method", f"{__name__}.Owner.method", "gc.freeze", "a filter"]

    patches.undo()
    assert installed() == []


def test_an_error_while_undoing_keeps_nothing_else_in_place() -> None:
    owner, patches = Owner(), Patches()
    patches.wrap(owner, "method", around)
    patches.add("broken", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    patches.wrap(owner, "inherited", around)

    with pytest.raises(ZeroDivisionError):
        patches.undo()

    assert vars(owner) == {}
    assert installed() == []


def test_patches_that_are_never_undone_do_not_keep_their_owner_alive() -> None:
    patches = Patches()
    patches.wrap(Owner(), "method", around)
    assert len(installed()) == 1

    del patches
    gc.collect()

    assert installed() == []


def test_each_wrapper_for_instances_calls_the_one_below_and_the_class_shows_its_method() -> None:
    class Called:
        def __call__(self) -> list[str]:
            return ["own"]

    shown = Called.__call__
    below, above = Patches(), Patches()
    for patches, name in ((below, "below"), (above, "above")):
        patches.wrap_for_instances(Called, "__call__", lambda call, name=name: lambda module: [name, *call(module)])

    assert Called()() == ["above", "below", "own"]
    assert Called.__call__ is shown
    above.undo()
    assert Called()() == ["below", "own"]
    below.undo()
    assert vars(Called)["__call__"] is shown
