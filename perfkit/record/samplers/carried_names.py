"""Loops in which an iteration needs the result of the one before, by their source: a simulation, a recurrence.

A name that the body reads before it assigns it is carried on. A sum is not meant: what is only added to itself can be
added in one call. What objects of the program's keep inside is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from perfkit.record.samplers.source_lookup import parsed


def carrying_loops(file: str) -> frozenset[int]:
    """The lines of the ``for`` and ``while`` statements of a file that carry a result on; none for unreadable ones."""
    loops = (node for node in ast.walk(parsed(file)) if isinstance(node, ast.For | ast.While))
    return frozenset(loop.lineno for loop in loops if _carries(loop))


def _carries(loop: ast.For | ast.While) -> bool:
    statements = list(_statements(loop.body))
    assigned_somewhere = {name for statement in statements for name, _ in _names(statement, ast.Store)}
    known = {name for name, _ in _names(loop.target, ast.Store)} if isinstance(loop, ast.For) else set[str]()
    # A number that counts the iterations is known in each.
    known |= {name for statement in statements if (name := _summed(statement)) is not None and _counts(statement)}
    own_items = tuple(f"{name}." for name in known)
    for statement in statements:
        own, written = _summed(statement), _written(statement)
        for name, node in _names(statement, ast.Load):
            # A sum reads itself, and so does an element that is changed.
            if name in known or name == own or name.startswith(own_items):
                continue
            if name in assigned_somewhere and ast.dump(node) not in written:
                return True
        if own is None:
            known |= {name for name, _ in _names(statement, ast.Store)}
    return False


def _counts(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    parts = (value.left, value.right) if isinstance(value, ast.BinOp) else (value,)
    return any(isinstance(one, ast.Constant) for one in parts)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements in the order in which they run, each without those inside of it."""
    for statement in body:
        inner = [getattr(statement, field, None) for field in ("body", "orelse", "finalbody")]
        if any(isinstance(part, list) and part for part in inner):
            yield from _statements([one for part in inner if isinstance(part, list) for one in part])
        else:
            yield statement


def _summed(statement: ast.stmt) -> str | None:
    """The name to which a statement adds something: ``total += x``, ``total = total + x - y``."""
    if isinstance(statement, ast.AugAssign):
        return _path(statement.target)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    name, value = _path(statement.targets[0]), statement.value
    if name is None or not isinstance(value, ast.BinOp):
        return None
    parts = [one for one, _ in _names(value, ast.Load)]
    return name if parts.count(name) == 1 and name in map(_path, _terms(value)) else None


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    """What is added up, or subtracted."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        yield from _terms(value.left)
        yield from _terms(value.right)
    else:
        yield value


def _written(statement: ast.stmt) -> set[str]:
    """What a statement assigns, as it would be read."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {ast.dump(one).replace("ctx=Store()", "ctx=Load()") for one in targets if isinstance(one, ast.Subscript)}


def _names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[tuple[str, ast.expr]]:
    """The names, dotted names and names of which elements are read or assigned, with where they stand."""
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, context) and (name := _path(one.value)) is not None:
            yield f"{name}[]", one
        elif (
            isinstance(one, ast.Name | ast.Attribute)
            and isinstance(one.ctx, context)
            and (name := _path(one)) is not None
        ):
            yield name, one


def _path(node: ast.expr) -> str | None:
    """The dotted name that an expression is."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else None
