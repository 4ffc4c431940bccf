"""Whether a loop of the user's sends the items of a collection through a model one at a time, and none needs another.

The line of the call stands in a ``for`` statement or a comprehension whose collection is there before the loop begins
(a list, a tensor, or ``range(n)`` whose numbers are the indices of one), what is passed follows from the item, and no
answer flows into a later call. Where a name may carry an answer on, it is taken to do so: assignments, methods and
functions that an answer is passed to, tests of an answer. A loop that stops early, yields, awaits, takes a step or
starts a backward is not examined.

Between the loop and the model may be functions that prepare one item and return an answer (``embed(text)``): those that
change nothing but their own names, and read nothing that an answer flows into.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeGuard

import torch

from perfkit._code_owner import USER, frames_outwards, line_of, owner_of
from perfkit.record.program_values import ABSENT, own_attribute
from perfkit.record.samplers.source_lookup import FILLS, parsed

_Loop = ast.For | ast.ListComp | ast.SetComp | ast.GeneratorExp
#: What cannot keep an answer: nothing changes it, or it is a function.
_FIXED = (ModuleType, FunctionType, BuiltinFunctionType, type, bool, int, float, str, bytes, tuple)
#: What a loop must not contain: it may end early, or wait for something, or what it does is not seen here.
_UNCLEAR = (
    *(ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr, ast.Global, ast.Nonlocal),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.While, ast.AsyncFor, ast.Try, ast.Match),
)
#: Methods that change what later calls answer: of an optimizer, an environment, a loss.
_CHANGES = ("step", "backward")
#: Functions through which a loop goes over the same items.
_SAME_ITEMS = ("enumerate", "zip", "reversed", "sorted", "list", "tuple", "tqdm", "len")
_COLLECTIONS = (list, tuple, dict, set, torch.Tensor)


#: Functions between the loop and the model that are looked at (chosen): each is read in the source.
_MAX_HELPERS = 3


def items_of_loop(frame: FrameType, module: Any) -> int | None:
    """The items that a loop goes through, each for itself, that calls a module in ``frame``; None: none is known."""
    found: list[int] = []
    called: Any = module
    reads: frozenset[str] = frozenset()
    users = (one for one in frames_outwards(frame) if owner_of(one.f_code.co_filename) == USER)
    for _, one in zip(range(1 + _MAX_HELPERS), users, strict=False):
        found += _items(one, called, reads)
        if found or not _only_answers(one.f_code):
            break
        called, reads = one.f_code, reads | frozenset(one.f_code.co_names)
    return max(found, default=None)


def feeds_itself(frame: FrameType, module: Any) -> bool:
    """Whether a loop calls a module in ``frame`` with what it makes of the answer to the call before: a rollout.

    As an action leads to the next observation, through whatever an environment does. Between the loop and the model may
    be functions that return what they make of the answer, or keep it in an object.
    """
    called: Any = module
    scope: dict[str, Any]
    users = (one for one in frames_outwards(frame) if owner_of(one.f_code.co_filename) == USER)
    for _, one in zip(range(1 + _MAX_HELPERS), users, strict=False):
        line, code, scope = line_of(one), one.f_code, {**one.f_globals, **one.f_locals}
        call = _Call(line, called, scope, frozenset())
        loops = (node for node in ast.walk(parsed(code.co_filename)) if isinstance(node, ast.For | ast.While))
        around = (node for node in loops if code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0))
        if any(_feeds(node.body, call, in_object=False) for node in around):
            return True
        function = next((node for node in ast.walk(parsed(code.co_filename)) if _is_source_of(node, code)), None)
        if function is None:
            return False
        if _feeds(function.body, call, in_object=True):
            return True
        answers = _Flow(call, set(), answers=True)
        answers.run(function.body)
        returned = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
        if not any(value is not None and answers.reads(value) for value in returned):
            return False
        called = code
    return False


def _feeds(body: list[ast.stmt], call: _Call, *, in_object: bool) -> bool:
    """Whether what is passed to a call follows from an answer in the round before; ``in_object``: kept in an object."""
    before = _Flow(call, set(), answers=True)
    before.run(body)
    # A method of the object itself may do anything with an answer: it is not followed.
    marked = {path for path in before.marked if path != "self" and (not in_object or path.startswith("self."))}
    after = _Flow(call, marked, answers=False)
    after.run(body)
    return after.passed


def _items(frame: FrameType, called: Any, reads: frozenset[str]) -> list[int]:
    """The lengths of the loops in a frame that call a module or a function for one item each."""
    line = line_of(frame)
    scope = {**frame.f_globals, **frame.f_locals}
    # Before Python 3.12 a comprehension has a frame of its own.
    if frame.f_code.co_name in ("<listcomp>", "<setcomp>", "<genexpr>") and frame.f_back is not None:
        frame = frame.f_back
        scope = {**frame.f_globals, **frame.f_locals, **scope}
    return [
        length
        for node in ast.walk(parsed(frame.f_code.co_filename))
        if isinstance(node, _Loop)
        and frame.f_code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0)
        and (length := _length(_iterated(node), scope) or _indexed(node, scope)) is not None
        and _is_independent(node, _Call(line, called, scope, reads))
    ]


def _only_answers(code: CodeType) -> bool:
    """Whether a function changes nothing but its own names and returns something, as its source shows."""
    function = next((one for one in ast.walk(parsed(code.co_filename)) if _is_source_of(one, code)), None)
    if function is None:
        return False
    for node in (inner for statement in function.body for inner in ast.walk(statement)):
        unclear = isinstance(node, (*_UNCLEAR, ast.For, ast.Delete)) and not isinstance(node, ast.Return)
        if unclear or (isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            if method in (*FILLS, *_CHANGES) or (method.endswith("_") and not method.endswith("__")):
                return False
    return True


def _is_source_of(node: ast.AST, code: CodeType) -> TypeGuard[ast.FunctionDef]:
    if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
        return False
    return code.co_firstlineno == min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _iterated(loop: _Loop) -> ast.expr:
    return loop.iter if isinstance(loop, ast.For) else loop.generators[0].iter


def _length(node: ast.expr, scope: Mapping[str, Any]) -> int | None:
    """The length of the collection that a loop goes through; None where it may be made on the way."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name == "range" and node.args:
            # The indices of a collection.
            inner = node.args[-1]
            is_len = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "len"
            return _length(inner, scope) if is_len else None
        return _length(node.args[0], scope) if name in _SAME_ITEMS and node.args else None
    path = _path(node)
    value: Any = _value_of(path, scope) if path else None
    if isinstance(value, torch.Tensor):
        return len(value) if value.dim() else None
    # An array of numpy, which perfkit does not import.
    is_array = (type(value).__module__, type(value).__name__) == ("numpy", "ndarray") and value.ndim
    return len(value) if is_array or isinstance(value, _COLLECTIONS) else None


def _indexed(loop: _Loop, scope: Mapping[str, Any]) -> int | None:
    """The length of a collection whose items a loop over ``range(n)`` reads by its index; None: it does so of none."""
    iterated = _iterated(loop)
    target = loop.target if isinstance(loop, ast.For) else loop.generators[0].target
    if not isinstance(iterated, ast.Call) or _path(iterated.func) != "range" or not isinstance(target, ast.Name):
        return None
    if len(iterated.args) != 1:
        return None
    [count] = iterated.args
    length = count.value if isinstance(count, ast.Constant) else _value_of(_path(count), scope)
    read = (one for one in ast.walk(loop) if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Load))
    indexed = (one.value for one in read if isinstance(one.slice, ast.Name) and one.slice.id == target.id)
    return length if type(length) is int and any(_length(one, scope) == length for one in indexed) else None


def _value_of(path: str, scope: Mapping[str, Any]) -> Any:
    """What a dotted name stands for, read without running code of the user's; None where that is not known."""
    first, *rest = path.split(".")
    value = scope.get(first)
    for name in rest:
        own = own_attribute(value, name, ABSENT)
        if own is ABSENT:
            own = vars(value)["_modules"].get(name) if issubclass(type(value), torch.nn.Module) else None
        value = own
    return value


def _code_of(path: str, scope: Mapping[str, Any]) -> CodeType | None:
    """The code of the function or method that a dotted name stands for, without its decorators."""
    base, _, name = path.rpartition(".")
    value = _value_of(path, scope)
    if value is None and base:
        value = inspect.getattr_static(type(_value_of(base, scope)), name, None)
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    return inspect.unwrap(function).__code__ if isinstance(function, FunctionType) else None


class _Call(NamedTuple):
    """A call of ``called``, a module or the code of a function, with the values of the names at its time.

    ``reads`` has the names that the function reads; with a module it is empty.
    """

    line: int
    called: Any
    scope: Mapping[str, Any]
    reads: frozenset[str]

    def is_made_by(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or not node.lineno <= self.line <= (node.end_lineno or node.lineno):
            return False
        if not isinstance(node.func, ast.Name | ast.Attribute):
            return False
        value = (_code_of if isinstance(self.called, CodeType) else _value_of)(_path(node.func), self.scope)
        return value is self.called

    def reads_any(self, marked: set[str]) -> bool:
        """Whether the function reads something marked by itself, other than by its arguments."""
        return any(name in self.reads for path in marked for name in path.split("."))


def _path(node: ast.AST) -> str:
    """The dotted name of a variable or of what contains it: ``self.found`` of ``self.found[0]``; empty for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript | ast.Starred):
        return _path(node.value)
    if isinstance(node, ast.Attribute):
        base = _path(node.value)
        return f"{base}.{node.attr}" if base and isinstance(node.value, ast.Name | ast.Attribute) else base
    return ""


def _is_independent(loop: _Loop, call: _Call) -> bool:
    """Whether what is passed to the call follows from the item and from no answer to an item before."""
    nodes = [*ast.walk(loop)]
    methods = {
        one.func.attr
        for one in nodes
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and not call.is_made_by(one)
    }
    if any(isinstance(one, _UNCLEAR) for one in nodes) or not methods.isdisjoint(_CHANGES):
        return False
    if not isinstance(loop, ast.For):
        item = _Flow(call, {_path(name) for name in _names(loop.generators[0].target)}, answers=False)
        item.follow(loop.elt)
        return item.passed and len(loop.generators) == 1
    targets = {_path(name) for name in _names(loop.target)}
    item = _Flow(call, set(targets), answers=False)
    item.run(loop.body)
    before = _Flow(call, set(), answers=True)
    before.run(loop.body)
    after = _Flow(call, before.marked - targets, answers=False)
    after.run(loop.body)
    return item.passed and not after.passed and not after.reads(loop.iter) and not call.reads_any(after.marked)


def _names(target: ast.expr) -> Iterator[ast.expr]:
    """What an assignment sets."""
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _names(one)
    else:
        yield target


class _Flow:
    """Follows marked names through statements; with ``answers``, what the call returns is marked too."""

    def __init__(self, call: _Call, marked: set[str], *, answers: bool) -> None:
        self.marked = marked
        #: Whether something marked was passed to the call.
        self.passed = False
        self._call = call
        self._answers = answers

    def run(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def reads(self, node: ast.AST) -> bool:
        """Whether an expression has something marked in it."""
        return any(
            (self._answers and self._call.is_made_by(one))
            or (isinstance(one, ast.Name | ast.Attribute) and self._is_marked(_path(one)))
            for one in ast.walk(node)
        )

    def _is_marked(self, path: str) -> bool:
        return any(path == one or path.startswith(one + ".") for one in self.marked) if path else False

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.For | ast.While | ast.If | ast.With):
            self._block(node)
            return
        self.follow(node)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            marks = self.reads(node.value)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (name for one in targets for name in _names(one)):
                self._assign(target, marks, replaces=not isinstance(node, ast.AugAssign))

    def _block(self, node: ast.For | ast.While | ast.If | ast.With) -> None:
        if isinstance(node, ast.With):
            for item in node.items:
                self.follow(item.context_expr)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, self.reads(item.context_expr), replaces=True)
            self.run(node.body)
            return
        before = set(self.marked)
        condition = node.iter if isinstance(node, ast.For) else node.test
        self.follow(condition)
        marks = self.reads(condition)
        if isinstance(node, ast.For | ast.While):
            # Twice: what the first round marks, the second reads.
            for _ in range(2):
                for target in _names(node.target) if isinstance(node, ast.For) else ():
                    self._assign(target, marks, replaces=True)
                self.run(node.body)
            self.marked |= before
            return
        self.run(node.body)
        after, self.marked = self.marked, before
        self.run(node.orelse)
        self.marked |= after
        if marks:
            assigned = (one for one in ast.walk(node) if isinstance(getattr(one, "ctx", None), ast.Store))
            self.marked |= {path for one in assigned if (path := _path(one))}

    def follow(self, node: ast.AST) -> None:
        """What is passed on: a call may keep something marked in its object or in its other arguments."""
        for one in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
            arguments = [*one.args, *(keyword.value for keyword in one.keywords)]
            if not any(map(self.reads, arguments)):
                continue
            if self._call.is_made_by(one):
                self.passed = True
            elif isinstance(one.func, ast.Attribute):
                self.marked |= self._same_as(_path(one.func.value))
            elif _path(one.func) in self._call.scope:
                self.marked |= {path for argument in arguments for path in self._same_as(_path(argument))}

    def _assign(self, target: ast.expr, marks: bool, *, replaces: bool) -> None:
        path = _path(target)
        if not path:
            return
        if marks:
            self.marked |= self._same_as(path) if isinstance(target, ast.Subscript) else {path}
        elif replaces and not isinstance(target, ast.Subscript):
            self.marked -= {one for one in self.marked if one == path or one.startswith(path + ".")}

    def _same_as(self, path: str) -> set[str]:
        """The name, and the others of the same object; none for a module, a class or a function."""
        value = _value_of(path, self._call.scope) if path else None
        if not path or isinstance(value, _FIXED):
            return set()
        others = {name for name, one in self._call.scope.items() if one is value} if value is not None else set()
        return {path, *others}
