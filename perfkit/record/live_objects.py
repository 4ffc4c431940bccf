"""The objects of a type that are alive in this process."""

from __future__ import annotations

import gc
import operator
from collections.abc import Iterable, Iterator
from itertools import chain, compress, islice, repeat
from typing import Any


def instances_of(kinds: Iterable[type]) -> list[Any]:
    """The tracked objects whose type is one of ``kinds`` (not a subclass of one)."""
    ids = {id(kind) for kind in kinds}
    held: list[Any] = []
    # type() and not isinstance(): the class of a proxy object is computed by its owner's code.
    return _found(held, compress(held, map(ids.__contains__, map(id, map(type, held)))))[1]


def few_instances_of(kind: type, *, at_most: int) -> list[Any] | None:
    """The tracked objects whose type is ``kind``, in two thirds of the time; None if more than ``at_most`` are tracked.

    Of what is tracked beyond ``at_most``, nothing is looked at.
    """
    held: list[Any] = []
    tracked, found = _found(held, compress(islice(held, at_most), map(operator.is_, map(type, held), repeat(kind))))
    return found if tracked <= at_most else None


def _found(held: list[Any], chosen: Iterator[Any]) -> tuple[int, list[Any]]:
    """How many objects the garbage collector tracks, and those that ``chosen`` yields once ``held`` has all of them.

    Another thread may be in the middle of ``tuple(generator)``: its tuple is already tracked, and CPython raises
    ``SystemError: bad argument to internal function`` in that thread if anyone else holds a reference to it
    (https://github.com/python/cpython/issues/59313). So no other thread may run between taking the list of all objects
    and dropping it: all of it is one call of ``list``, without bytecode in between.
    """
    take = map(held.extend, islice(iter(gc.get_objects, None), 1))
    count = map(len, repeat(held, 1))
    drop: Iterator[Any] = iter(held.clear, None)
    # The first item is what `held.extend` returned.
    found = list(chain(take, count, chosen, drop))
    return found[1], found[2:]


def subclasses_of(kind: type) -> set[type]:
    """``kind`` and every class that is derived from it."""
    found, todo = {kind}, [kind]
    while todo:
        new: set[type] = set(type.__subclasses__(todo.pop())) - found
        found |= new
        todo += new
    return found
