"""Lines that draw with numpy in a way that costs more than the numbers they draw, as the source shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from perfkit.record.samplers.user_source import HotPlaces, read_source
from perfkit.run.records import NumpyDraw

#: The positional arguments of ``choice``: (a, size, replace, p).
_REPLACE, _WEIGHTS = 2, 3


def find_numpy_draws(places: HotPlaces) -> tuple[NumpyDraw, ...]:
    """The hottest lines outside of training, and those that lead to them, that draw so."""
    return tuple(
        NumpyDraw(file=file, line=line, function=at.function or "", owner=at.owner or "", permutes=permutes)
        for (file, line), at in places.others.items()
        for permutes in list(_draws(read_source(file).statement_at(line), line))[:1]
    )


def _draws(statement: ast.stmt | None, line: int) -> Iterator[bool]:
    """Whether a ``choice`` of this line permutes all that it draws from; False: it adds up weights."""
    for one in ast.walk(statement) if statement is not None else ():
        if not isinstance(one, ast.Call) or not isinstance(one.func, ast.Attribute) or one.func.attr != "choice":
            continue
        if not one.lineno <= line <= (one.end_lineno or one.lineno):
            continue
        is_module = _is_module(one.func.value)
        # Positions are of numpy's functions; a Generator is known by the names of its arguments.
        weights, replace = (
            _argument(one, name, position if is_module else len(one.args))
            for name, position in (("p", _WEIGHTS), ("replace", _REPLACE))
        )
        if weights is not None and not (isinstance(weights, ast.Constant) and weights.value is None):
            yield False
        # The functions of the module, and RandomState's; a Generator draws few of many without it.
        elif isinstance(replace, ast.Constant) and replace.value is False and is_module:
            yield True


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    by_name = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return by_name if by_name is not None or len(call.args) <= position else call.args[position]


def _is_module(value: ast.expr) -> bool:
    """Whether an expression is ``np.random``."""
    return ast.unparse(value) in ("np.random", "numpy.random")
