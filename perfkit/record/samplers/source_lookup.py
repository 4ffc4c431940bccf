"""Reads the user's source to find lines that no measurement gives: where a setting is made, where a name is filled."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from perfkit._code_owner import USER, owner_of
from perfkit._location import Location
from perfkit.run.records import RANK_SLICE

#: Files that are read, and lines kept of one name: a program has dozens of files, not thousands.
_MAX_FILES = 200
_MAX_LINES = 8
#: Methods that put something into a container.
_FILLS = ("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put")

#: Types, and methods that convert to one, other than numpy's double.
_OTHER_TYPES = frozenset(
    (
        "float",
        "half",
        "bfloat16",
        "int",
        "long",
        "bool",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
    )
)


def user_files() -> tuple[str, ...]:
    """The user's files that are imported."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return tuple(dict.fromkeys(file for file in files if isinstance(file, str) and owner_of(file) == USER))


def find_calls(names: Collection[str], files: Iterable[str]) -> dict[str, tuple[Location, ...]]:
    """Name -> the lines that call a function or set an argument of that name, except to False or None.

    A location's function is what stands there: ``set_num_threads(...)``, or ``deterministic=`` for an argument, which
    may also be the key of a dictionary.
    """
    wanted, found = frozenset(names), defaultdict[str, list[Location]](list)
    for file in itertools.islice(files, _MAX_FILES):
        for _, node in _nodes(file):
            for name, line, shown in _calls_and_arguments(node):
                if name in wanted and len(found[name]) < _MAX_LINES:
                    found[name].append(Location(file=file, line=line, function=shown))
    return {name: tuple(lines) for name, lines in found.items() if lines}


def _calls_and_arguments(node: ast.AST) -> Iterator[tuple[str, int, str]]:
    """(name, line, how it stands there) of the function that a node calls, and of the arguments that it sets."""
    if isinstance(node, ast.Call):
        name = _last_name(node.func)
        if name is not None and not (node.args and _is_off(node.args[0])):
            yield name, node.lineno, f"{name}(...)"
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            # A type, as in x.to(torch.float64): the name is the value's.
            if isinstance(value, ast.Attribute):
                yield value.attr, value.lineno, value.attr
        for keyword in node.keywords:
            if keyword.arg is not None and not _is_off(keyword.value):
                yield keyword.arg, keyword.value.lineno, f"{keyword.arg}="
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.lower is not None:
        # rows[rank::ranks], rows[self.rank * part : (self.rank + 1) * part]
        names = [(_last_name(inner) or "").lower() for inner in ast.walk(node.slice.lower)]
        if any(name == "rank" or name.endswith("_rank") for name in names):
            yield RANK_SLICE, node.lineno, ast.unparse(node)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and not _is_off(value):
                yield key.value, key.lineno, f"{key.value}="


def find_double_arrays(files: Iterable[str]) -> tuple[Location, ...]:
    """The lines that call ``from_numpy`` where nothing around or inside the call names another type than numpy's."""
    found = []
    for file in itertools.islice(files, _MAX_FILES):
        if not any("from_numpy" in line for line in linecache.getlines(file)):
            continue
        converted: set[int] = set()
        for _, node in _nodes(file):
            if not isinstance(node, ast.Call):
                continue
            inside = list(ast.walk(node))
            if any(isinstance(inner, ast.Attribute) and inner.attr in _OTHER_TYPES for inner in inside):
                converted.update(map(id, inside))
            elif _last_name(node.func) == "from_numpy" and id(node) not in converted:
                found.append(Location(file=file, line=node.lineno, function="from_numpy(...)"))
    return tuple(found[:_MAX_LINES])


def find_filling_lines(name: str, files: Iterable[str]) -> tuple[Location, ...]:
    """The lines of the first file that adds something to the variable ``name``, or else one line that assigns it."""
    assigned: Location | None = None
    for file in itertools.islice(files, _MAX_FILES):
        filling = []
        for function, node in _nodes(file):
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
                fills = _last_name(node.func.value) == name
            elif isinstance(node, ast.AugAssign):
                fills = _last_name(node.target) == name
            elif isinstance(node, ast.Assign) and any(_last_name(target) == name for target in node.targets):
                # total = total + loss
                again = any(_last_name(inner) == name for inner in ast.walk(node.value))
                fills = again or any(isinstance(target, ast.Subscript) for target in node.targets)
                computed = any(isinstance(inner, ast.Call | ast.BinOp) for inner in ast.walk(node.value))
                if assigned is None and computed:
                    assigned = Location(file=file, line=line, function=function)
            else:
                continue
            if fills:
                filling.append(Location(file=file, line=line, function=function))
        if filling:
            return tuple(filling[:_MAX_LINES])
    return (assigned,) if assigned is not None else ()


@functools.lru_cache(maxsize=8)
def parsed(file: str) -> ast.Module:
    """The tree of a file; an empty one where there is no source."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _nodes(file: str) -> Iterator[tuple[str, ast.AST]]:
    """(function around it, node) of a file, in the order of its lines."""
    todo: list[tuple[str, ast.AST]] = [("<module>", parsed(file))]
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


def _is_off(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and (node.value is False or node.value is None)
