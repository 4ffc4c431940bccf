"""Which lines of the user's compute what the model trains on, as the source shows.

A rollout does, and so does a search for hard examples; a preview, a validation and a report do not. Of the hottest
lines and of those from which they were reached, that is a statement of which something goes into a training step: the
names that it assigns, and what a function of the same file that it calls puts into its arguments or into the attributes
of an object. From there names are followed through the assignments and loops of the functions that train. What flows
through other functions is not seen.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perfkit._location import Location
from perfkit.record.samplers.source_lookup import FILLS
from perfkit.record.samplers.user_source import (
    BLOCKS,
    FunctionNode,
    HotPlaces,
    Place,
    UserSource,
    lines_of,
    read_source,
    span_of,
)

#: Methods that put something into an object: those of containers, and what replay buffers call it.
_PUTS = frozenset((*FILLS, "push", "store", "record", "write"))
#: Passes over a function, in the order of its lines: what a loop carries into its next iteration takes a second one.
_MAX_ROUNDS = 4
#: Functions that are entered below the statement, one in the other.
_NESTED_CALLS = 2


def find_training_inputs(places: HotPlaces) -> tuple[Location, ...]:
    """The lines whose results training reads, of the hottest ones and of those that lead to them."""
    return tuple(at for place, at in places.others.items() if _is_read_by_training(place, places.training))


def _is_read_by_training(place: Place, training: frozenset[Place]) -> bool:
    """Whether something that the statement at this place sets goes into a line that trains."""
    file, line = place
    source = read_source(file)
    statement, function = source.statement_at(line), source.function_at(line)
    if statement is None:
        return False
    names = set(_set_by(statement)) | set(_set_by_calls(statement, file))
    numbers = {number for of, number in training if of == file}
    if names and _reach(function or source.tree, names, numbers, before=statement):
        return True
    if names and function is not None and _is_argument_of_training(function, names, source, numbers):
        return True
    attributes = {name for name in names if name.startswith(".")}
    others = {id(one): one for number in numbers if (one := source.function_at(number)) not in (None, function)}
    return bool(attributes) and any(_reach(one, attributes, numbers) for one in others.values() if one is not None)


def _is_argument_of_training(function: FunctionNode, names: set[str], source: UserSource, training: set[int]) -> bool:
    """Whether a function returns these names into a call that trains: ``self.update(*self.rollout())``."""
    known = _with_those_set(function, names)
    returns = (one for one in _flows_of(function) if isinstance(one.statement, ast.Return))
    if all(known.isdisjoint(one.reads) for one in returns):
        return False
    statements = filter(None, map(source.statement_at, training))
    calls = (node for one in statements for part in _evaluated(one) for node in ast.walk(part))
    arguments = (one for call in calls if isinstance(call, ast.Call) for one in (*call.args, *call.keywords))
    inner = (node for one in arguments for node in ast.walk(one) if isinstance(node, ast.Call))
    return any(_called_here(node.func) == function.name for node in inner)


def _called_here(called: ast.expr) -> str | None:
    """The name of a function, or of a method of ``self``; None for a method of anything else."""
    if isinstance(called, ast.Attribute):
        return called.attr if isinstance(called.value, ast.Name) and called.value.id == "self" else None
    return called.id if isinstance(called, ast.Name) else None


def _reach(scope: ast.AST, names: set[str], training: set[int], before: ast.stmt | None = None) -> bool:
    """Whether these names go into a training line of a function, through its assignments and loops."""
    known = _with_those_set(scope, names, before)
    return any(
        one.statement is not before and not known.isdisjoint(one.reads) and not training.isdisjoint(one.lines)
        for one in _flows_of(scope)
    )


def _with_those_set(scope: ast.AST, names: set[str], before: ast.stmt | None = None) -> set[str]:
    """Names with those that statements set that read one of them, except the statement ``before``."""
    known = set(names)
    for _ in range(_MAX_ROUNDS):
        before_round = len(known)
        for one in _flows_of(scope):
            if one.statement is not before and not known.isdisjoint(one.reads):
                known |= one.sets
        if len(known) == before_round:
            break
    return known


class _DataFlow(NamedTuple):
    """What a statement reads and sets, and the lines in which it may train: those of a loop with its body."""

    statement: ast.stmt
    reads: frozenset[str]
    sets: frozenset[str]
    lines: range


@functools.lru_cache(maxsize=64)  # the functions of a program that train: each report asks for them again
def _flows_of(scope: ast.AST) -> tuple[_DataFlow, ...]:
    return tuple(
        _DataFlow(
            one,
            frozenset(_reads(_evaluated(one))),
            frozenset(_set_by(one)),
            span_of(one) if isinstance(one, ast.For) else lines_of(one),
        )
        for one in _statements(scope)
    )


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a function, or of a file outside of its functions and classes, in their order."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            # Not into expressions: a sum of a thousand terms is nested a thousand times.
            yield from _statements(child)


def _evaluated(statement: ast.stmt) -> list[ast.AST]:
    """What a statement evaluates itself: of a loop what it goes through, of other blocks nothing."""
    if isinstance(statement, ast.For):
        return [statement.iter]
    return [] if isinstance(statement, BLOCKS) else [statement]


def _reads(parts: Iterable[ast.AST]) -> Iterator[str]:
    """The names, and the attributes with a dot before them, that are read."""
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield f".{node.attr}"


def _set_by(statement: ast.stmt) -> Iterator[str]:
    """The names and attributes that a statement sets."""
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [statement.target]
    else:
        targets = []
    for target in targets:
        yield from _targets(target)
    if isinstance(statement, ast.Expr) and (put := _put_into(statement.value)) is not None:
        yield from _targets(put)


def _targets(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _targets(one)
        return
    base = _base(target)
    if base is not None:
        yield base


def _base(target: ast.expr) -> str | None:
    """``x`` of ``x[i]`` and ``x.part[i]``, ``.buffer`` of ``self.buffer.rows[i]``; None of anything else."""
    below: ast.expr | None = None
    while isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
        below, target = target, target.value
        if isinstance(below, ast.Attribute) and isinstance(target, ast.Name) and target.id == "self":
            return f".{below.attr}"
    return target.id if isinstance(target, ast.Name) else None


def _put_into(node: ast.expr) -> ast.expr | None:
    """The object of a call of a method that puts something into it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PUTS:
        return node.func.value
    return None


def _set_by_calls(statement: ast.stmt, file: str, depth: int = _NESTED_CALLS) -> Iterator[str]:
    """What functions of the same file that a statement calls put into its arguments, and the attributes they set."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call):
            continue
        called = read_source(file).defined(node.func)
        if called is None:
            continue
        parameters = [one.arg for one in called.args.args]
        if isinstance(node.func, ast.Attribute) and parameters[:1] == ["self"]:
            parameters = parameters[1:]
        given = dict(zip(parameters, node.args, strict=False)) | {
            keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None
        }
        for name in _set_inside(called, file, depth):
            if name.startswith("."):
                yield name
            elif name in given and (base := _base(given[name])) is not None:
                yield base


@functools.lru_cache(maxsize=1024)
def _set_inside(function: FunctionNode, file: str, depth: int) -> frozenset[str]:
    """The attributes that a function sets or fills, and its parameters that it fills."""
    found: set[str] = set()
    for one in _statements(function):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AugAssign) else []
        # A name that is assigned is another object afterwards.
        found |= {
            base for target in targets if not isinstance(target, ast.Name | ast.Tuple) and (base := _base(target))
        }
        found |= {base for target in targets if isinstance(target, ast.Tuple) for base in _targets(target)}
        if isinstance(one, ast.Expr) and (put := _put_into(one.value)) is not None and (base := _base(put)) is not None:
            found.add(base)
        if depth > 1 and _evaluated(one):
            found |= set(_set_by_calls(one, file, depth - 1))
    return frozenset(found)
