"""Two rows as one: each field by the mark that its record gives it (`Amount`, `Maximum`, `Minimum`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from perfkit.run.records import Step

_Row = TypeVar("_Row", bound=msgspec.Struct)


def merged(first: _Row, second: _Row) -> _Row:
    """One row for two of the same type; a value that is None in one row is the other's, an unmarked one the first's."""
    joined: dict[str, Any] = {}
    for name, join in _joins(type(first)).items():
        values = [value for row in (first, second) if (value := getattr(row, name)) is not None]
        joined[name] = join(*values) if len(values) == 2 else values[0] if values else None
    return msgspec.structs.replace(first, **joined)


def merged_by(key: Callable[[_Row], object], rows: Iterable[_Row]) -> tuple[_Row, ...]:
    """The rows, those of the same key as one."""
    found: dict[object, _Row] = {}
    for row in rows:
        of = key(row)
        found[of] = merged(found[of], row) if of in found else row
    return tuple(found.values())


@functools.cache
def _joins(kind: type[msgspec.Struct]) -> dict[str, Callable[[Any, Any], Any]]:
    """Field -> what joins its values, for the fields that have such a mark or hold a record with marks."""
    found: dict[str, Callable[[Any, Any], Any]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            if hasattr(part, "__metadata__"):
                found[name] = part.__metadata__[0]
            elif isinstance(part, type) and issubclass(part, msgspec.Struct):
                found[name] = merged
    return found


def merge_pairwise(rows: Sequence[Step]) -> list[Step]:
    """Merge neighbouring rows of the same mode, kind and window; others stay as they are."""
    result: list[Step] = []
    waiting: Step | None = None
    for row in rows:
        if waiting is not None and _group(waiting) == _group(row):
            result.append(merged(waiting, row))
            waiting = None
            continue
        if waiting is not None:
            result.append(waiting)
        waiting = row
    return result if waiting is None else [*result, waiting]


def _group(row: Step) -> tuple[object, ...]:
    return row.mode, row.kind, row.window
