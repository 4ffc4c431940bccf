"""Reads the user's source to find lines that no measurement gives: where a setting is made, where a name is filled."""

from __future__ import annotations

import ast
import bisect
import functools
import itertools
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from perfkit._code_owner import USER, owner_of
from perfkit._location import Location
from perfkit.run.records import RANK_SLICE, Filling, LineRow

#: Files that are read, and lines kept of one name: a program has dozens of files, not thousands.
MAX_FILES = 200
MAX_LINES = 8
#: Hottest lines whose sources are looked up.
_HOTTEST = 8
#: Methods that put something into a container.
FILLS = ("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put")
#: Those of them after which it is larger, whatever it held.
_GROWS = ("append", "appendleft", "extend", "insert", "add")
#: Functions that join their arguments: what is among them and gets the result is larger afterwards.
_JOINS = ("cat", "concat", "concatenate", "vstack", "hstack", "append")

#: What registers a hook with a tensor, a module or an optimizer.
_REGISTERS = re.compile(r"register_(\w+_)?hook")


def user_files() -> tuple[str, ...]:
    """The user's files that are imported."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return tuple(dict.fromkeys(file for file in files if isinstance(file, str) and owner_of(file) == USER))


def find_calls(names: Collection[str], files: Iterable[str]) -> dict[str, tuple[Location, ...]]:
    """Name -> the lines that call a function or set an argument of that name, except to False or None.

    ``name=False`` stands for an argument that is set to False.

    A location's function is what stands there: ``set_num_threads(...)``, or ``deterministic=`` for an argument, which
    may also be the key of a dictionary.
    """
    wanted, found = frozenset(names), defaultdict[str, list[Location]](list)
    words = "|".join(re.escape(name.partition("=")[0]) for name in wanted)
    named = re.compile(rf"\b(?:{words})\b|(?i:rank\b)" if RANK_SLICE in wanted else rf"\b(?:{words})\b")
    for file in itertools.islice(files, MAX_FILES):
        source = linecache.getlines(file)
        # Parsing a file and walking through it takes 30 us a line, and most lines of a large project have none of this.
        if lines := [number for number, line in enumerate(source, start=1) if named.search(line)]:
            for name, line, shown in _calls_of(file, hash(tuple(source)), wanted, tuple(lines)):
                if len(found[name]) < MAX_LINES:
                    found[name].append(Location(file=file, line=line, function=shown))
    return {name: tuple(lines) for name, lines in found.items() if lines}


@functools.lru_cache(maxsize=MAX_FILES)  # a process that records again has the same files
def _calls_of(
    file: str, source: int, wanted: frozenset[str], lines: tuple[int, ...]
) -> tuple[tuple[str, int, str], ...]:
    return tuple(one for _, node in nodes_of(file, lines) for one in _calls_and_arguments(node) if one[0] in wanted)


def _calls_and_arguments(node: ast.AST) -> Iterator[tuple[str, int, str]]:
    """(name, line, how it stands there) of the function that a node calls, and of the arguments that it sets."""
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name is not None and not (node.args and _is_off(node.args[0])):
            yield name, node.lineno, f"{name}(...)"
        # A type, as in x.to(torch.float64).
        yield from _attributes_in(*node.args, *(keyword.value for keyword in node.keywords))
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield f"{keyword.arg}{_off(keyword.value)}", keyword.value.lineno, f"{keyword.arg}="
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        yield from _attributes_in(node.value)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.lower is not None:
        # rows[rank::ranks], rows[self.rank * part : (self.rank + 1) * part]
        names = [(last_name(inner) or "").lower() for inner in ast.walk(node.slice.lower)]
        if any(name == "rank" or name.endswith("_rank") for name in names):
            yield RANK_SLICE, node.lineno, ast.unparse(node)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield f"{key.value}{_off(value)}", key.lineno, f"{key.value}="


def _attributes_in(*values: ast.expr) -> Iterator[tuple[str, int, str]]:
    """The attributes that are values, or either value of a choice: ``float64`` of ``torch.float64``."""
    for value in values:
        for one in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            if isinstance(one, ast.Attribute):
                yield one.attr, one.lineno, one.attr


#: Of the kinds of padding: a tensor of which each row is filled in part.
_FILLS_ROWS = 2
#: Multiples to which rows are padded that cost little.
_FEW_MORE = 16
#: Functions that pad to a width.
_PADS = ("pad_sequence", "pad", "ConstantPad1d", "ljust")


def find_padding(files: Iterable[str]) -> tuple[Location, ...]:
    """The lines that pad rows, by an argument of a tokenizer or collator, else a list to a width.

    Else a tensor that rows fill in part: the line that sets its width, as wide as all of its rows will be, else the one
    that makes it. A pad function comes last: most of those pad a batch to its own longest row. Other than in a model's
    forward.
    """
    found: list[tuple[int, Location]] = []
    for file in itertools.islice(files, MAX_FILES):
        made: dict[tuple[str, str], int] = {}
        for function, node in nodes_of(file):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if (function, name) not in made or not _is_longest(node.value):
                    made[function, name] = _width_set_at(node.value, function, made) or node.lineno
            if (kind := _kind_of_padding(node)) is not None and not function.endswith("forward"):
                line = getattr(node, "lineno", 0)
                if kind == _FILLS_ROWS and isinstance(node, ast.Assign):
                    line = made.get((function, last_name(node.targets[0]) or ""), line)
                found.append((kind, Location(file=file, line=line, function=function)))
    ordered = sorted(found, key=lambda one: one[0])
    return tuple(at for _, at in ordered[:MAX_LINES])


def _is_longest(value: ast.expr) -> bool:
    """Whether a value is the longest of a batch's own rows."""
    return any(isinstance(one, ast.Call) and last_name(one.func) in ("max", "amax") for one in ast.walk(value))


def _width_set_at(value: ast.expr, function: str, made: dict[tuple[str, str], int]) -> int | None:
    """Of ``torch.zeros(len(rows), width)`` the line of the function that assigns ``width``; None where none does."""
    sizes = value.args if isinstance(value, ast.Call) else []
    sizes = sizes[0].elts if sizes and isinstance(sizes[0], ast.Tuple | ast.List) else sizes
    named = (made.get((function, one.id)) for one in sizes[1:] if isinstance(one, ast.Name))
    return next((line for line in named if line is not None), None)


def _kind_of_padding(node: ast.AST) -> int | None:
    """How a node pads rows, the surest way first; None where it does not."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        # row + [0] * (width - len(row))
        sides = (node.left, node.right)
        is_list = any(isinstance(one, ast.List | ast.Tuple) for one in sides)
        return (
            1 if is_list and any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub) for one in sides) else None
        )
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        index = node.targets[0].slice
        # batch[row, : len(tokens)] = tokens, and captions[places >= lengths] = 0
        parts = index.elts if isinstance(index, ast.Tuple) else []
        until = [one for one in parts if isinstance(one, ast.Slice) and one.lower is None and one.upper is not None]
        if len(until) == 1 and len(parts) > 1:
            return _FILLS_ROWS
        named = [(last_name(one) or "").lower() for one in ast.walk(index)]
        return 3 if isinstance(index, ast.Compare) and any("len" in name for name in named) else None
    if isinstance(node, ast.Call):
        return 0 if _tokenizer_pads(node) or _pads_far(node) else 4 if last_name(node.func) in _PADS else None
    return None


def _pads_far(call: ast.Call) -> bool:
    """Whether rows become a multiple of more than 16, as ``DataCollatorWithPadding(..., pad_to_multiple_of=128)``."""
    multiple = {one.arg: one.value for one in call.keywords}.get("pad_to_multiple_of")
    # Matrix units of GPUs need multiples of at most 16. A value that is not a constant may be larger.
    few = isinstance(multiple, ast.Constant) and (type(multiple.value) is not int or multiple.value <= _FEW_MORE)
    return multiple is not None and not few


def _tokenizer_pads(call: ast.Call) -> bool:
    """Whether it has ``padding=True`` or "max_length", or with a ``max_length`` anything that is known only later."""
    given = {one.arg: one.value for one in call.keywords}
    padding = given.get("padding")
    if isinstance(padding, ast.Constant):
        return padding.value is True or padding.value == "max_length"
    return padding is not None and "max_length" in given


def find_fillings(rows: Iterable[LineRow]) -> tuple[Filling, ...]:
    """For the hottest lines and the lines from which they were reached: what adds to what they read."""
    own = sorted((row for row in rows if row.worker is None and row.owner == USER), key=lambda row: -row.samples)
    places: dict[tuple[str, int], Location] = {}
    for row in own[:_HOTTEST]:
        for at in (row, row.called_from):
            if at is not None and at.line is not None:
                places.setdefault((at.file, at.line), at.at)
    found = []
    for (file, line), at in places.items():
        adds = find_filling_of(file, line)
        filled = adds or _registered_at(file, at.function or "")
        if filled is not None:
            function = at.function or ""
            found.append(
                Filling(file=file, line=line, function=function, owner=USER, filled=filled, is_hook=adds is None)
            )
    return tuple(found)


def find_makers(rows: Iterable[LineRow]) -> dict[str, Location]:
    """Class -> the only line of the user's that calls it, of the classes in whose methods most of a fetch passes."""
    wanted = {name for row in rows for name, samples in row.objects.items() if 2 * samples > row.samples}
    calls = find_calls(wanted, user_files()) if wanted else {}
    return {name: at[0] for name, at in calls.items() if [one.function for one in at] == [f"{name}(...)"]}


@functools.lru_cache(maxsize=256)  # as below
def _registered_at(file: str, hook: str) -> Location | None:
    """The first line that registers the hook, else any hook in the function in which ``hook`` is defined."""
    outer, _, name = hook.rpartition(".<locals>.")
    found = None
    for function, node in nodes_of(file):
        if not isinstance(node, ast.Call) or not _REGISTERS.fullmatch(last_name(node.func) or ""):
            continue
        at = Location(file=file, line=node.lineno, function=function)
        # Also in ``partial(self.record, name)`` and in a lambda that calls it.
        if any(name.rpartition(".")[2] == last_name(inner) for given in node.args for inner in ast.walk(given)):
            return at
        found = found or (at if outer and function == outer else None)
    return found


@functools.lru_cache(maxsize=256)  # the same lines are hot in each report
def find_filling_of(file: str, line: int) -> Location | None:
    """The line that adds to what a line reads, such as the list that it walks over; None where nothing is added to it.

    What a method of the same file reads of its object counts as read where the line calls the method. A deque is
    bounded where it is made: of one, that line. What is emptied or assigned anew elsewhere may not grow: the caller
    knows that something does.
    """
    for _, node in nodes_of(file):
        if not isinstance(node, ast.stmt) or node.lineno != line:
            continue
        header = [node.iter] if isinstance(node, ast.For) else [node.test] if isinstance(node, ast.While) else [node]
        inside = [inner for part in header for inner in ast.walk(part)]
        names = dict.fromkeys([*_read_names(inside), *_read_by_methods(inside, file)])
        # What a method of the same object adds to is not the object.
        for name in (one for one in names if one not in ("self", "cls")):
            for function, other in nodes_of(file):
                if not isinstance(other, ast.Call | ast.Assign | ast.AugAssign) or function.endswith("forward"):
                    continue  # what a forward joins is gone after it
                if _adds_to(name, other):
                    return _made_as_deque(name, file) or Location(file=file, line=other.lineno, function=function)
    return None


def _adds_to(name: str, node: ast.Call | ast.Assign | ast.AugAssign) -> bool:
    """Whether a node adds to what has this name: by a method, as ``x = cat([x, y])``, or ``x += [y]``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _GROWS and last_name(node.func.value) == name
    if isinstance(node, ast.AugAssign):
        return last_name(node.target) == name and isinstance(node.value, ast.List | ast.Tuple | ast.ListComp)
    joined = [inner for inner in ast.walk(node.value) if isinstance(inner, ast.Call)]
    parts = [part for call in joined if last_name(call.func) in _JOINS for part in call.args]
    again = any(last_name(inner) == name for part in parts for inner in ast.walk(part))
    return again and any(last_name(target) == name for target in node.targets)


def _read_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The last part of each name or attribute that is read."""
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


def _read_by_methods(nodes: Iterable[ast.AST], file: str) -> Iterator[str]:
    """The attributes of ``self`` that the called methods of the same file read."""
    called = {node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    for _, node in nodes_of(file):
        if isinstance(node, ast.FunctionDef) and node.name in called:
            own = (inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute))
            yield from _read_names(inner for inner in own if last_name(inner.value) == "self")


def _made_as_deque(name: str, file: str) -> Location | None:
    """The line that makes the deque of this name; None for other things."""
    for function, node in nodes_of(file):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if last_name(node.value.func) == "deque" and any(last_name(target) == name for target in targets):
            return Location(file=file, line=node.lineno, function=function)
    return None


def find_filling_lines(name: str, files: Iterable[str]) -> tuple[Location, ...]:
    """The lines of the first file that adds something to the variable ``name``, or else one line that assigns it."""
    assigned: Location | None = None
    for file in itertools.islice(files, MAX_FILES):
        filling = []
        for function, node in nodes_of(file):
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLS:
                fills = last_name(node.func.value) == name
            elif isinstance(node, ast.AugAssign):
                fills = last_name(node.target) == name
            elif isinstance(node, ast.Assign) and any(last_name(target) == name for target in node.targets):
                # total = total + loss
                again = any(last_name(inner) == name for inner in ast.walk(node.value))
                fills = again or any(isinstance(target, ast.Subscript) for target in node.targets)
                computed = any(isinstance(inner, ast.Call | ast.BinOp) for inner in ast.walk(node.value))
                if assigned is None and computed:
                    assigned = Location(file=file, line=line, function=function)
            else:
                continue
            if fills:
                filling.append(Location(file=file, line=line, function=function))
        if filling:
            return tuple(filling[:MAX_LINES])
    return (assigned,) if assigned is not None else ()


@functools.lru_cache(maxsize=8)
def parsed(file: str) -> ast.Module:
    """The tree of a file; an empty one where there is no source."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def nodes_of(file: str, lines: Sequence[int] | None = None) -> Iterator[tuple[str, ast.AST]]:
    """(function around it, node) of a file, in the order of its lines; of statements those with one of ``lines``."""
    todo: list[tuple[str, ast.AST]] = [("<module>", parsed(file))]
    while todo:
        function, node = todo.pop()
        if lines is not None and isinstance(node, ast.stmt):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            at = bisect.bisect_left(lines, first)
            if at == len(lines) or lines[at] > (node.end_lineno or node.lineno):
                continue
        yield function, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = node.name if function == "<module>" else f"{function}.{node.name}"
        todo.extend((function, child) for child in reversed(list(ast.iter_child_nodes(node))))


def last_name(node: ast.AST) -> str | None:
    """``c`` of ``a.b.c``, ``a`` of ``a[0]``; None of anything without a name."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _off(node: ast.AST) -> str:
    """``=False`` or ``=None`` of these values."""
    return f"={node.value!r}" if isinstance(node, ast.Constant) and _is_off(node) else ""


def _is_off(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and (node.value is False or node.value is None)
