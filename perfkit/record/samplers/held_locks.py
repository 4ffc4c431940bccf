"""Where else the program holds a lock for which a line waits, as the source shows: the ``with`` of the same name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.record.samplers.source_lookup import parsed
from perfkit.run.records import HeldLock, LineRow


def find_held_locks(rows: Iterable[LineRow], files: Iterable[str]) -> tuple[HeldLock, ...]:
    """For the lines of the training process that wait in a ``with``: the other block that calls most while it holds."""
    waiting = [row for row in rows if row.worker is None and row.owner == USER and any((row.waiting or {}).values())]
    blocks: list[tuple[Location, ast.With, str]] | None = None
    found = []
    for row in waiting:
        names = [name for block, name in _locks(row.file) if row.line == block.lineno]
        if not names:
            continue
        if blocks is None:
            blocks = [(_place(file, block), block, name) for file in files for block, name in _locks(file)]
        others = [
            (at, block) for at, block, name in blocks if name in names and (at.file, at.line) != (row.file, row.line)
        ]
        at, block = max(others, key=lambda one: _calls_in(one[1]), default=(None, None))
        if at is not None and block is not None and _calls_in(block):
            found.append(HeldLock(file=row.file, line=row.line, function=row.function, owner=USER, held_at=at))
    return tuple(found)


def _locks(file: str) -> Iterator[tuple[ast.With, str]]:
    """The blocks of a file that hold something by a name alone: ``with self.lock:``, and the last part of the name."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.context_expr, ast.Attribute):
                    yield node, item.context_expr.attr
                elif isinstance(item.context_expr, ast.Name):
                    yield node, item.context_expr.id


def _place(file: str, block: ast.With) -> Location:
    return Location(file=file, line=block.lineno, function=None, owner=USER)


def _calls_in(block: ast.With) -> int:
    return sum(isinstance(node, ast.Call) for one in block.body for node in ast.walk(one))
