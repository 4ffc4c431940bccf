"""The statements and functions of one of the user's files, by line; and the lines of a run that are worth a look."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.record.samplers.source_lookup import parsed
from perfkit.run.records import CallPaths

#: A function of the user's, in a file's tree.
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
#: (file, line).
Place = tuple[str, int]

BLOCKS = (
    *(ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)
#: Lines that are looked at, those with most samples below them first.
_MAX_PLACES = 32
_TRAINING = ("backward", "optimizer")
#: The library, as paths have it, whose wrapper is around each optimizer's ``step``.
_RUNS_STEP = "torch.optim"


class UserSource(NamedTuple):
    """A file's statements that are no blocks, its functions, also by name, and its conditions, outer ones first."""

    tree: ast.Module
    statements: list[ast.stmt]
    functions: list[FunctionNode]
    by_name: dict[str, FunctionNode]
    conditions: list[ast.If]

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement of a line that is no block."""
        return next((one for one in reversed(self.statements) if line in lines_of(one)), None)

    def function_at(self, line: int) -> FunctionNode | None:
        """The innermost function around a line; None outside of all."""
        around = [one for one in self.functions if one.lineno <= line <= (one.end_lineno or 0)]
        return max(around, key=lambda one: one.lineno, default=None)

    def defined(self, called: ast.expr) -> FunctionNode | None:
        """The function of this name."""
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else None
        return self.by_name.get(name) if name is not None else None


@functools.lru_cache(maxsize=8)
def read_source(file: str) -> UserSource:
    """The file's statements; none where it has no source."""
    tree = parsed(file)
    nodes = list(ast.walk(tree))
    statements = [one for one in nodes if isinstance(one, ast.stmt) and lines_of(one)]
    functions = [one for one in nodes if isinstance(one, FunctionNode)]
    by_name = {one.name: one for one in reversed(functions)}
    return UserSource(tree, statements, functions, by_name, [one for one in nodes if isinstance(one, ast.If)])


def lines_of(statement: ast.stmt) -> range:
    """The lines of a statement that is no block."""
    return range(0) if isinstance(statement, BLOCKS) else span_of(statement)


def span_of(node: ast.stmt) -> range:
    """All lines of a statement, a block with its body."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


class HotPlaces(NamedTuple):
    """The user's lines in which training passes, with those that lead to them, and the hottest of all others.

    ``updates`` are the hottest lines of an optimizer of the program's own, below its ``step``: not those of the loop,
    where N may be the steps of accumulation.
    """

    training: frozenset[Place]
    others: dict[Place, Location]
    updates: dict[Place, Location] = {}


def hot_places(paths: CallPaths) -> HotPlaces:
    """The lines of a run's samples."""
    training: set[Place] = set()
    below: Counter[Place] = Counter()
    updating: Counter[Place] = Counter()
    at: dict[Place, Location] = {}
    for node, count in enumerate(paths.samples):
        if not count:
            continue
        for frame in _outwards(paths, node):
            if frame.owner != USER or frame.line is None:
                continue
            place = frame.file, frame.line
            at.setdefault(place, frame)
            if paths.phase[node] in _TRAINING:
                training.add(place)
            else:
                below[place] += count
        updating.update(dict.fromkeys(_below_step(paths, node), count))
    others = [place for place, _ in below.most_common() if place not in training][:_MAX_PLACES]
    updates = [place for place, count in updating.most_common(_MAX_PLACES) if count]
    return HotPlaces(
        frozenset(training), {place: at[place] for place in others}, {place: at[place] for place in updates}
    )


def _below_step(paths: CallPaths, node: int) -> list[Place]:
    """The user's lines on a path below the function of torch that runs an optimizer's ``step``; none without that."""
    inside: list[Place] = []
    for frame in _outwards(paths, node):
        if frame.owner == USER and frame.line is not None:
            inside.append((frame.file, frame.line))
        elif frame.file == _RUNS_STEP:
            return inside
    return []


def _outwards(paths: CallPaths, node: int) -> Iterator[Location]:
    while node >= 0:
        yield paths.frames[paths.frame[node]]
        node = paths.parent[node]
