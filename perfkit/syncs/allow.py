"""Syncs that are intended: ``with allow_sync("reason")``, a decorator, or a comment on the line."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import linecache
import re
import tokenize
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from perfkit.errors import PerfkitWarning, UsageError

F = TypeVar("F", bound=Callable[..., Any])

#: Reasons of the open `allow_sync` blocks, innermost last; per thread and per asyncio task.
_open_reasons: ContextVar[tuple[str, ...]] = ContextVar("perfkit_allow_sync", default=())

_COMMENT = re.compile(r"#\s*perfkit:\s*allow-sync(?:\[(?P<reason>[^\]]*)\])?")


class allow_sync:
    """Allow the syncs inside a block or a function: they are counted as allowed, not reported.

        with perfkit.allow_sync("epoch metrics"):
            total = loss.item()

        @perfkit.allow_sync("checkpoint")
        def save(model): ...

        value = loss.item()  # perfkit: allow-sync[logged every 100 steps]

    The comment may be on any line of the statement. A block applies to the current thread and asyncio task.

    Raises:
        UsageError: the reason is missing or empty, or a generator function is decorated.
    """

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError(f'allow_sync needs a reason, as in allow_sync("epoch metrics"), got {reason!r}')
        self.reason = reason

    def __enter__(self) -> allow_sync:
        _open_reasons.set((*_open_reasons.get(), self.reason))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open_reasons.set(_open_reasons.get()[:-1])

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            # Between two yields the caller would run inside the block.
            raise UsageError(
                f"allow_sync cannot decorate the generator {function.__qualname__}: "
                "write `with allow_sync(...)` around the syncs inside it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]  # same parameters and result as the function

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]  # same parameters and result as the function


def allowed_reason(file: str, line: int) -> str | None:
    """The reason for which a sync at this line is allowed now, None if it is not."""
    reasons = _open_reasons.get()
    if reasons:
        return reasons[-1]
    # linecache returns the same list until the file is read again (a notebook cell that was edited).
    lines = linecache.getlines(file)
    known = _comments.get(file)
    if known is None or known[0] is not lines:
        known = _comments[file] = (lines, _allowed_lines(file, lines))
    return known[1].get(line)


#: File -> its lines, and line -> reason of its comments.
_comments: dict[str, tuple[list[str], dict[int, str]]] = {}


def _allowed_lines(file: str, lines: list[str]) -> dict[int, str]:
    """Line -> reason, for every line of a statement with the comment."""
    source = "".join(lines)
    if "allow-sync" not in source:
        return {}
    comments: dict[int, str] = {}
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):  # a cell with magics, or no Python
        return {}
    for token in tokens:
        found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
        if found is None:
            continue
        reason = (found["reason"] or "").strip()
        if reason:
            comments[token.start[0]] = reason
        else:
            warnings.warn(
                f"{file}:{token.start[0]}: '# perfkit: allow-sync' needs a reason in brackets, "
                "as in '# perfkit: allow-sync[epoch metrics]'; without a reason it is ignored",
                PerfkitWarning,
                stacklevel=2,
            )
    allowed = dict(comments)
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        # Of a compound statement only the head: a comment on the line of an `if` must not allow the whole block.
        last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
        inside = range(node.lineno, max(last, node.lineno) + 1)
        for number in inside:
            if number in comments:
                allowed.update({other: comments[number] for other in inside if other not in comments})
    return allowed
