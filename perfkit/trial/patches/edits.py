"""The ways in which a change is written into a file; the module of a change names its own in ``EDITS``.

``{value}`` in their text is the value of the change. Of several, the first that fits a place is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol

from perfkit.run.records import ChangedLine
from perfkit.source_edits.draft import Draft
from perfkit.source_edits.names import dotted
from perfkit.source_edits.source import CannotWriteError, Source

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


#: Whose arguments.
TrainerKind = Literal["huggingface", "lightning", "accelerate"]


class Edit(Protocol):
    """One way to write a change."""

    def write(self, draft: Draft, place: ChangedLine, value: Any) -> None:
        """Write it at a place.

        Raises:
            CannotWriteError: it cannot be written there; nothing of it has been.
        """


class SetArgument(NamedTuple):
    """An argument of the call that ran: ``num_workers=4``.

    ``calls`` are names that the function may have, ``position`` is the argument's index where it may be given without
    its name. The arguments of ``without`` are taken out, those of ``without_at_zero`` where the value is 0.
    """

    calls: tuple[str, ...]
    argument: str
    position: int | None = None
    without: tuple[str, ...] = ()
    without_at_zero: tuple[str, ...] = ()

    def write(self, draft: Draft, place: ChangedLine, value: Any) -> None:
        """Give it the value."""
        name, _, text = self.argument.format(value=value).partition("=")
        arguments = draft.arguments(draft.names.call_at(place, self.calls))
        arguments.want(name, text, self.position)
        for other in (*self.without, *(self.without_at_zero if value == 0 else ())):
            arguments.want(other, None)


class ReplaceCall(NamedTuple):
    """The call that ran becomes another expression."""

    calls: tuple[str, ...]
    code: str

    def write(self, draft: Draft, place: ChangedLine, value: Any) -> None:
        """Write the other one."""
        code = self.code.format(value=value)
        draft.source.replace_expression(draft.names.call_at(place, self.calls), code)
        draft.need_modules(code)


class RemoveStatement(NamedTuple):
    """The statement that is nothing but the call that ran is taken out."""

    calls: tuple[str, ...]

    def write(self, draft: Draft, place: ChangedLine, value: Any) -> None:
        """Take it out."""
        statement = draft.source.parents[draft.names.call_at(place, self.calls)]
        if not isinstance(statement, ast.Expr):
            raise CannotWriteError("uses the result of the call")
        draft.source.remove(statement)


class FirstStatement(NamedTuple):
    """A statement that runs once, at the beginning of the script, behind its imports."""

    code: str

    def write(self, draft: Draft, place: ChangedLine | None, value: Any) -> None:
        """Write it at the top of the file."""
        draft.add_first(self.code.format(value=value))


class Wrap(NamedTuple):
    """The statement that calls the model goes into a ``with`` block.

    With ``until``, the ones after it as well, up to the one that calls that method.
    """

    header: str
    until: str | None = None

    def write(self, draft: Draft, place: ChangedLine, value: Any) -> None:
        """Put them into the block."""
        source = draft.source
        call = draft.names.model_call(place)
        inside = source.statement(call)
        if any(isinstance(one, ast.Lambda | ast.GeneratorExp) for one in _within(source, call, inside)):
            raise CannotWriteError("calls the model later than where it stands")
        if hasattr(inside, "body"):
            raise CannotWriteError("calls the model in the head of a block")
        statements = [inside] if self.until is None else _up_to(source, inside, self.until)
        suspending = (ast.Yield, ast.YieldFrom, ast.Await)
        if any(isinstance(node, suspending) for one in statements for node in ast.walk(one)):
            raise CannotWriteError("is left in the middle, by yield or await")
        source.wrap(statements, self.header)
        draft.need_modules(f"{self.header} pass")


class BeforeLoop(NamedTuple):
    """Statements in front of the outermost loop around the place; ``{model}`` is the model that is called there."""

    code: str

    def write(self, draft: Draft, place: ChangedLine, value: Any) -> None:
        """Write them there."""
        source, code = draft.source, self.code
        if "{model}" in code:
            call = draft.names.model_call(place)
            model = dotted(call.func)
            if model is None:
                raise CannotWriteError("calls a model that has no name")
            loop = _outermost_loop(source, call)
            if not _bound_in(loop).isdisjoint({model, model.partition(".")[0]}):
                raise CannotWriteError(f"makes {model} inside of its loop")
            code = code.format(model=model, value=value)
        else:
            loop = _outermost_loop(source, _statement_on(source, place.line))
        source.insert_before(loop, code)
        draft.need_modules(code)


class TrainerArgument(NamedTuple):
    """The argument that stands for a change: ``dataloader_num_workers={value}``; None where a kind has none."""

    huggingface: str | None = None
    lightning: str | None = None
    accelerate: str | None = None

    def of(self, kind: TrainerKind) -> str | None:
        """The argument of one kind."""
        return {"huggingface": self.huggingface, "lightning": self.lightning, "accelerate": self.accelerate}[kind]


def _within(source: Source, node: ast.AST, outer: ast.AST) -> Iterable[ast.AST]:
    for one in source.outwards(node):
        if one is outer:
            return
        yield one


def _up_to(source: Source, statement: ast.stmt, method: str) -> list[ast.stmt]:
    """A statement and those after it, to the one before a call of the method; further out where there is none."""
    for outer in (statement, *source.outwards(statement)):
        if isinstance(outer, _FUNCTIONS + _LOOPS):
            break
        if isinstance(outer, ast.stmt):
            block = source.block(outer)
            first = block.index(outer)
            for index in range(first, len(block)):
                calls = (node for node in ast.walk(block[index]) if isinstance(node, ast.Call))
                if any(isinstance(one.func, ast.Attribute) and one.func.attr == method for one in calls):
                    if index == first:
                        raise CannotWriteError(f"calls the model and .{method}() in one statement")
                    while index > first + 1 and _is_call(block[index - 1], "zero_grad"):
                        index -= 1
                    return block[first:index]
    raise CannotWriteError(f"has no .{method}() after it")


def _is_call(statement: ast.stmt, method: str) -> bool:
    function = (
        statement.value.func if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
    )
    return isinstance(function, ast.Attribute) and function.attr == method


def _statement_on(source: Source, line: int) -> ast.stmt:
    found = [
        node for node in ast.walk(source.tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]  # fmt: skip
    if not found:
        raise CannotWriteError("has no statement")
    return max(found, key=lambda one: one.lineno)


def _outermost_loop(source: Source, node: ast.AST) -> ast.stmt:
    loop = None
    for outer in source.outwards(node):
        if isinstance(outer, _FUNCTIONS):
            break
        if isinstance(outer, _LOOPS):
            loop = outer
    if loop is None:
        raise CannotWriteError("is in no loop of its function")
    return loop


def _bound_in(loop: ast.stmt) -> set[str | None]:
    """The names, also ``self.model``, that a loop gives a value to."""
    names = (node for node in ast.walk(loop) if isinstance(node, ast.Name | ast.Attribute))
    return {dotted(one) for one in names if isinstance(one.ctx, ast.Store)}
