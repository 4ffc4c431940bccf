"""Several rows as one: each field by the mark that its record gives it (`Amount`, `Maximum`, `Minimum`)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from perfkit.run.records import Step

_Row = TypeVar("_Row", bound=msgspec.Struct)

#: Rows that are never merged: the first steps of a run (caches, compilation) are not like those that follow.
FIRST_ROWS = 10

#: What joins two values -> what joins many at once.
_OF_MANY: dict[Any, Callable[[list[Any]], Any]] = {operator.add: sum, max: max, min: min}


def merged(*rows: _Row) -> _Row:
    """One row for several of one type; values that are None do not count, a field without a mark is the first's."""
    joined: dict[str, Any] = {}
    for name, (value_of, join) in _joins(type(rows[0])).items():
        values = [value for value in map(value_of, rows) if value is not None]
        joined[name] = join(values) if len(values) > 1 else values[0] if values else None
    return msgspec.structs.replace(rows[0], **joined)


def merged_by(key: Callable[[_Row], object], rows: Iterable[_Row]) -> tuple[_Row, ...]:
    """The rows, those of the same key as one."""
    groups: dict[object, list[_Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return tuple(merged(*group) if len(group) > 1 else group[0] for group in groups.values())


@functools.cache
def _joins(kind: type[msgspec.Struct]) -> dict[str, tuple[Callable[[Any], Any], Callable[[list[Any]], Any]]]:
    """Field -> what reads it and what joins its values, for fields with such a mark or a record with marks."""
    found: dict[str, tuple[Callable[[Any], Any], Callable[[list[Any]], Any]]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            if hasattr(part, "__metadata__") and callable(part.__metadata__[0]):
                mark = part.__metadata__[0]
                found[name] = operator.attrgetter(name), _OF_MANY.get(mark) or functools.partial(functools.reduce, mark)
            elif isinstance(part, type) and issubclass(part, msgspec.Struct):
                found[name] = operator.attrgetter(name), _merged_values
    return found


def _merged_values(values: list[Any]) -> Any:
    return merged(*values)


def merged_in_blocks(rows: Iterable[Step], size: int) -> list[Step]:
    """The rows in blocks of at most ``size`` steps, see `merged_block`; one that has more already is a block alone."""
    found: list[Step] = []
    block: list[Step] = []
    steps = 0
    for row in rows:
        if block and steps + row.steps > size:
            found += merged_block(block)
            block, steps = [], 0
        block.append(row)
        steps += row.steps
    return [*found, *merged_block(block)]


def merged_block(rows: Sequence[Step]) -> list[Step]:
    """One row per mode and kind, in the order in which these begin; a row of several windows belongs to none."""
    groups: dict[object, list[Step]] = {}
    for row in rows:
        groups.setdefault((row.mode, row.kind), []).append(row)
    found = []
    for group in groups.values():
        row = merged(*group) if len(group) > 1 else group[0]
        if row.window is not None and any(one.window != row.window for one in group):
            row = msgspec.structs.replace(row, window=None)
        found.append(row)
    return found


def fitted(rows: Sequence[Step], size: int, most: int) -> tuple[list[Step], int]:
    """At most ``most`` rows for these: in blocks of ``size`` steps, or of so many times twice as many that they fit.

    The first rows stay as they are. Returns the size of the blocks as well.
    """
    first, found = rows[:FIRST_ROWS], merged_in_blocks(rows[FIRST_ROWS:], size)
    while FIRST_ROWS + len(found) > most:
        size *= 2
        found = merged_in_blocks(found, size)
    return [*first, *found], size


def merged_steps(rows: Iterable[Step]) -> str | None:
    """A sentence about the steps that have no row of their own; None where each has one."""
    found = [row for row in rows if row.steps > 1]
    if not found:
        return None
    last = max(row.step + row.steps for row in found) - 1
    return (
        f"steps {found[0].step:,} to {last:,} are known as means of up to {max(row.steps for row in found):,} steps: "
        "a slow step among them shows in a mean only"
    )
