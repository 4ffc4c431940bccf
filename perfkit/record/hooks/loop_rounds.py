"""Sees the rounds of a script's loops, which stand for steps where nothing else shows any.

A program that solves, plans or simulates may have no loader, no optimizer, no backward and no module. ``perfkit run``
compiles its script with a call at the begin of each loop that the script itself begins: at module level, and in
functions that are called outside of loops only, so that their loops are not inner loops of others. A function with a
decorator that is not known is left alone: it may be compiled, and torch.compile would split at the call. The call takes
0.1 us, and 0.5 us until it is known what the steps are (measured on one CPU).
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

from perfkit import _clock
from perfkit._location import Location

#: Loops in loops have rounds too, this deep: epochs and their batches, or restarts and their iterations.
_DEPTH = 2
#: Rounds are steps where a loop has had at least this many, for at least this long, of at least this mean (chosen).
#: Data are often made in shorter rounds.
_ROUNDS, _FOR_NS, _EACH_NS = 3, 1_000_000_000, 1_000_000
#: A loop whose first rounds are shorter than that is not asked any more.
_LOOKED_AT = 1_000
#: Decorators under which a function runs as it is written; numba, torch.compile and others rewrite it.
_AS_WRITTEN = ("no_grad", "inference_mode", "enable_grad", "staticmethod", "classmethod", "record", "main", "command")

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class CountedLoop:
    """A loop of the script: called at the begin of each round."""

    def __init__(self, at: Location, outer: CountedLoop | None = None) -> None:
        self.at = at
        self.outer = outer
        #: When the first round began that was seen, and the rounds since.
        self.first_ns: int | None = None
        self.rounds = 0
        #: Called at each round.
        self.on_round: Callable[[CountedLoop], None] | None = None
        self.__name__ = type(self).__name__  # as others in the program's namespace that can be called

    @property
    def outermost(self) -> CountedLoop:
        """The loop around it that is in no other, or itself."""
        return self if self.outer is None else self.outer.outermost

    def __call__(self) -> None:
        if self.on_round is not None:
            self.on_round(self)

    def __reduce__(self) -> Any:
        # A function of __main__ that is pickled by value, for another machine, takes it along: there it does nothing.
        return functools.partial, (int,)


#: The loops of the program.
_loops: list[CountedLoop] = []


def listen(on_round: Callable[[CountedLoop], None]) -> None:
    """Call ``on_round`` with the loop at each round of one."""
    for loop in _loops:
        loop.on_round = on_round


def leave() -> None:
    """Stop calling."""
    for loop in _loops:
        loop.on_round = None


class ChosenLoop:
    """Chooses the loop whose rounds are steps: the outermost one that has some each second.

    ``may`` is asked before a loop is chosen; where it says no, after twice as long again. Once the chosen loop is over,
    another one takes its place, but none that is around it or within the same one: those go on in turns.
    """

    def __init__(self, may: Callable[[], bool]) -> None:
        self._may = may
        self._now = _clock.now_ns
        self._last_ns = 0
        self._for_ns = _FOR_NS
        self.loop: CountedLoop | None = None
        #: Whether it is the only one so far.
        self.is_first = True

    def step_at(self, loop: CountedLoop) -> Literal["begins", "ends"] | None:
        """What this round of ``loop`` is: the begin of the first step, the end of a step, or neither."""
        now = self._now()
        if loop is self.loop:
            self._last_ns = now
            return "ends"
        chosen = self.loop
        if chosen is None or (loop.outermost is not chosen.outermost and now - self._last_ns > _FOR_NS):
            self._look(loop, now)
        return "begins" if loop is self.loop else None

    def _look(self, loop: CountedLoop, now: int) -> None:
        if loop.first_ns is None:
            loop.first_ns = now
            return
        loop.rounds += 1
        taken = now - loop.first_ns
        if taken < loop.rounds * _EACH_NS:
            if loop.rounds >= _LOOKED_AT:
                loop.on_round = None
        elif (
            taken >= self._for_ns and loop.rounds >= _ROUNDS and (loop.outer is None or loop.outer.rounds < _ROUNDS - 1)
        ):
            if self._may():
                self.is_first = self.loop is None
                self.loop, self._last_ns = loop, now
            else:
                # Asking takes up to a second in a program of many objects.
                self._for_ns *= 2


def with_counted_loops(source: bytes, file: str) -> tuple[ast.Module, dict[str, CountedLoop]]:
    """The script with a call in each loop that it begins itself, and what the global names of these calls stand for.

    Raises:
        SyntaxError: the source is not valid Python.
    """
    tree = ast.parse(source, file)
    named: dict[str, CountedLoop] = {}
    for function, body in _run_once(tree):
        _count_rounds(body, file, function, named)
    _loops[:] = named.values()
    return tree, named


def _count_rounds(
    body: list[ast.stmt],
    file: str,
    function: str | None,
    named: dict[str, CountedLoop],
    outer: CountedLoop | None = None,
    depth: int = 1,
) -> None:
    for statement in body:
        if isinstance(statement, _SCOPES):
            continue
        if not isinstance(statement, _LOOPS):
            for block in _blocks(statement):
                _count_rounds(block, file, function, named, outer, depth)
            continue
        loop = CountedLoop(Location(file=file, line=statement.lineno, function=function, owner="user"), outer)
        if depth < _DEPTH:
            _count_rounds(statement.body, file, function, named, loop, depth + 1)
        _count_rounds(statement.orelse, file, function, named, outer, depth)
        name = f"__perfkit_loop_{len(named)}__"
        named[name] = loop
        call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], []))
        # At the line of the first statement: no line of the user's has another number.
        first = statement.body[0]
        for node in ast.walk(call):
            ast.copy_location(node, first)
        statement.body.insert(0, call)


def _blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statements in an ``if``, a ``with``, a ``try`` or a ``match``."""
    for field in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(statement, field, None), list):
            yield block
    for field in ("handlers", "cases"):
        for part in getattr(statement, field, ()):
            yield part.body


def _run_once(tree: ast.Module) -> list[tuple[str | None, list[ast.stmt]]]:
    """(name, body) of the module, and of the functions that it and these call, and only outside of loops."""
    functions = _functions(tree.body)
    mentioned = Counter(name for node in ast.walk(tree) if (name := _mentioned(node)) is not None)
    found: dict[str | None, list[ast.stmt]] = {None: tree.body}
    while True:
        calls = Counter(name for body in found.values() for statement in body for name in _calls(statement))
        more: dict[str | None, list[ast.stmt]] = {
            name: function.body
            for name, function in functions.items()
            if name not in found and calls[name] and calls[name] == mentioned[name] and _is_run_as_written(function)
        }
        if not more:
            return list(found.items())
        found |= more


def _functions(body: list[ast.stmt]) -> dict[str, _Function]:
    """The functions of a module and the methods of its classes by their names, without those that share one.

    Nor what a call of the object runs, which may be compiled.
    """
    found: dict[str, list[_Function]] = {}
    waiting: list[ast.AST] = list(body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(statement.name, []).append(statement)
        elif not (isinstance(statement, ast.ClassDef) and statement.decorator_list):
            waiting += [inner for block in _blocks(statement) for inner in block]
    return {name: same[0] for name, same in found.items() if len(same) == 1 and name not in ("forward", "__call__")}


def _is_run_as_written(function: _Function) -> bool:
    """Whether it is no generator, and all its decorators are known to leave it as it is."""
    called = (one.func if isinstance(one, ast.Call) else one for one in function.decorator_list)
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    return not yields and all(_mentioned(one) in _AS_WRITTEN for one in called)


def _mentioned(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _calls(node: ast.AST) -> Iterator[str]:
    """The names of what a statement calls once: not in a loop, and not in a function that it defines."""
    if isinstance(node, (*_SCOPES, ast.While)):
        for decorator in getattr(node, "decorator_list", ()):
            yield from _calls(decorator)
        return
    if isinstance(node, ast.For | ast.AsyncFor):
        yield from _calls(node.iter)
        return
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        yield from _calls(node.generators[0].iter)
        return
    if isinstance(node, ast.Call) and (name := _mentioned(node.func)) is not None:
        yield name
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)
