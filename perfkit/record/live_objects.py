"""The objects of a type that are alive in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from itertools import chain, compress, islice
from typing import Any


def live_count() -> int:
    """How many objects the garbage collector tracks."""
    return next(map(len, iter(gc.get_objects, None)))


def instances_of(kinds: Iterable[type]) -> list[Any]:
    """The tracked objects whose type is one of ``kinds`` (not a subclass of one).

    Another thread may be in the middle of ``tuple(generator)``: its tuple is already tracked, and CPython raises
    ``SystemError: bad argument to internal function`` in that thread if anyone else holds a reference to it
    (https://github.com/python/cpython/issues/59313). So no other thread may run between taking the list of all objects
    and dropping it: all of it is one call of ``list``, without bytecode in between.
    """
    ids = {id(kind) for kind in kinds}
    held: list[Any] = []
    take = map(held.extend, islice(iter(gc.get_objects, None), 1))
    # type() and not isinstance(): the class of a proxy object is computed by its owner's code.
    found = compress(held, map(ids.__contains__, map(id, map(type, held))))
    drop: Iterator[Any] = iter(held.clear, None)
    # The first item is what `held.extend` returned.
    return list(chain(take, found, drop))[1:]


def subclasses_of(kind: type) -> set[type]:
    """``kind`` and every class that is derived from it."""
    found, todo = {kind}, [kind]
    while todo:
        new: set[type] = set(type.__subclasses__(todo.pop())) - found
        found |= new
        todo += new
    return found
