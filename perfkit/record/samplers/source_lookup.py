"""The user's source, read to name a line that no measurement can: where a setting is made, where a name is filled."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Collection, Iterable, Iterator

from perfkit._code_owner import USER, owner_of
from perfkit._location import Location

#: Files that are read, and places kept of one name: a program has dozens of files, not thousands.
_FILES = 200
_PLACES = 8
#: Methods that put something into a container.
_FILLS = ("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put")


def user_files() -> tuple[str, ...]:
    """The files of the user's that are imported."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    mine = dict.fromkeys(file for file in files if isinstance(file, str) and owner_of(file) == USER)
    return tuple(mine)[:_FILES]


def calls_of(names: Collection[str], files: Iterable[str]) -> dict[str, tuple[Location, ...]]:
    """Name -> the lines that call a function or set a keyword of that name; a keyword that is ``False`` is none."""
    found: dict[str, list[Location]] = {}
    for file in files:
        for function, node in _nodes(file):
            if not isinstance(node, ast.Call):
                continue
            called = _last_name(node.func)
            off = {keyword.arg for keyword in node.keywords if _is_false(keyword.value)}
            used = {called} | {keyword.arg for keyword in node.keywords} - off
            if node.args and _is_false(node.args[0]):
                used.discard(called)
            for name in used & set(names):
                places = found.setdefault(str(name), [])
                if len(places) < _PLACES:
                    places.append(Location(file=file, line=node.lineno, function=function))
    return {name: tuple(places) for name, places in found.items()}


def lines_that_fill(name: str, files: Iterable[str]) -> tuple[Location, ...]:
    """The lines of the first file that puts something into what is called ``name``, or else one that binds it."""
    bound: Location | None = None
    for file in files:
        filling = []
        for function, node in _nodes(file):
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
                filled = _last_name(node.func.value) == name
            elif isinstance(node, ast.AugAssign):
                filled = _last_name(node.target) == name
            elif isinstance(node, ast.Assign):
                binds = any(_last_name(one) == name for one in node.targets)
                # total = total + loss
                again = binds and any(_last_name(inner) == name for inner in ast.walk(node.value))
                filled = again or any(isinstance(one, ast.Subscript) and binds for one in node.targets)
                computed = any(isinstance(inner, ast.Call | ast.BinOp) for inner in ast.walk(node.value))
                if bound is None and computed and binds:
                    bound = Location(file=file, line=line, function=function)
            else:
                continue
            if filled:
                filling.append(Location(file=file, line=line, function=function))
        if filling:
            return tuple(filling[:_PLACES])
    return (bound,) if bound is not None else ()


def _nodes(file: str) -> Iterator[tuple[str, ast.AST]]:
    """(function around it, node) of a file in the order of its lines; nothing where there is no source."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return
    todo: list[tuple[str, ast.AST]] = [("<module>", tree)]
    while todo:
        function, node = todo.pop()
        yield function, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = node.name if function == "<module>" else f"{function}.{node.name}"
        todo.extend((function, child) for child in reversed(list(ast.iter_child_nodes(node))))


def _last_name(node: ast.AST) -> str | None:
    """``c`` of ``a.b.c``, ``a`` of ``a[0]``; None of anything without a name."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and (node.value is False or node.value is None)
