"""Where else the program holds a lock for which a line waits, as the source shows: the ``with`` of the same name."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterable, Iterator

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.record.samplers.source_lookup import parsed
from perfkit.run.records import HeldLock, LineRow


def find_held_locks(rows: Iterable[LineRow], files: tuple[str, ...]) -> tuple[HeldLock, ...]:
    """For the lines of the training process that wait in a ``with``: the other block that calls most while it holds."""
    waiting = [row for row in rows if row.worker is None and row.owner == USER and any((row.waiting or {}).values())]
    found = []
    for row in waiting:
        names = (name for block, name in _locks(row.file) if row.line == block.lineno)
        held_at = next((at for name in names if (at := _held_at(name, row.file, row.line, files)) is not None), None)
        if held_at is not None:
            found.append(HeldLock(file=row.file, line=row.line, function=row.function, owner=USER, held_at=held_at))
    return tuple(found)


@functools.lru_cache(maxsize=64)  # the same lines wait in each report
def _held_at(name: str, file: str, line: int, files: tuple[str, ...]) -> Location | None:
    """The block of this name, other than the one in this line, that calls most; None: no other calls anything."""
    named = re.compile(rf"\bwith\b.*\b{re.escape(name)}\b")
    calls = [
        (_calls_in(block), Location(file=one, line=block.lineno, function=None, owner=USER))
        # Parsing takes 30 µs a line, and most files have no such block.
        for one in files
        if any(map(named.search, linecache.getlines(one)))
        for block, held in _locks(one)
        if held == name and (one, block.lineno) != (file, line)
    ]
    most, at = max(calls, key=lambda found: found[0], default=(0, None))
    return at if most else None


def _locks(file: str) -> Iterator[tuple[ast.With, str]]:
    """The blocks of a file that hold something by a name alone: ``with self.lock:``, and the last part of the name."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.context_expr, ast.Attribute):
                    yield node, item.context_expr.attr
                elif isinstance(item.context_expr, ast.Name):
                    yield node, item.context_expr.id


def _calls_in(block: ast.With) -> int:
    return sum(isinstance(node, ast.Call) for one in block.body for node in ast.walk(one))
