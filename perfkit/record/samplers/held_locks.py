"""Where else the program holds a lock for which a line waits, as the source shows: the ``with`` of the same name."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.record.samplers.source_lookup import parsed
from perfkit.run.records import HeldLock, LineRow


class _Block(NamedTuple):
    """A ``with`` that holds something by a name alone: ``with self.lock:``.

    ``name`` is the last part of it, ``of_class`` the class whose method has the block and whose own the name is.
    """

    node: ast.With
    name: str
    of_class: str | None


def find_held_locks(rows: Iterable[LineRow], files: tuple[str, ...]) -> tuple[HeldLock, ...]:
    """For the lines of the training process that wait in a ``with``: the other block on that name that calls most."""
    waiting = [row for row in rows if row.worker is None and row.owner == USER and any((row.waiting or {}).values())]
    found = []
    for row in waiting:
        own = next((block for block in _blocks(row.file) if block.node.lineno == row.line), None)
        held_at = _held_at(own.name, own.of_class, row.file, row.line, files) if own is not None else None
        if held_at is not None:
            found.append(HeldLock(file=row.file, line=row.line, function=row.function, owner=USER, held_at=held_at))
    return tuple(found)


@functools.lru_cache(maxsize=64)  # the same lines wait in each report
def _held_at(name: str, of_class: str | None, file: str, line: int, files: tuple[str, ...]) -> Location | None:
    """The block on this name, other than the one in this line, that calls most; None: no other calls anything.

    Where one is an attribute of ``self`` it may be another object's under any name, but not that of another class's
    ``self``.
    """
    named = re.compile(rf"\bwith\b.*\b{re.escape(name)}\b")
    calls = [
        (_calls_in(block.node), Location(file=one, line=block.node.lineno, function=None, owner=USER))
        # Parsing takes 30 µs a line, and most files have no such block.
        for one in files
        if any(map(named.search, linecache.getlines(one)))
        for block in _blocks(one)
        if block.name == name
        and (one, block.node.lineno) != (file, line)
        and (None in (of_class, block.of_class) or of_class == block.of_class)
    ]
    most, at = max(calls, key=lambda found: found[0], default=(0, None))
    return at if most else None


def _blocks(file: str) -> Iterator[_Block]:
    """The blocks of a file that hold something by a name alone."""
    todo: list[tuple[str | None, ast.AST]] = [(None, parsed(file))]
    while todo:
        of_class, node = todo.pop()
        for item in node.items if isinstance(node, ast.With) else ():
            held = item.context_expr
            if isinstance(node, ast.With) and isinstance(held, ast.Attribute):
                of_self = isinstance(held.value, ast.Name) and held.value.id == "self"
                yield _Block(node, held.attr, of_class if of_self else None)
            elif isinstance(node, ast.With) and isinstance(held, ast.Name):
                yield _Block(node, held.id, None)
        inside = node.name if isinstance(node, ast.ClassDef) else of_class
        todo.extend((inside, child) for child in ast.iter_child_nodes(node))


def _calls_in(block: ast.With) -> int:
    return sum(isinstance(node, ast.Call) for one in block.body for node in ast.walk(one))
