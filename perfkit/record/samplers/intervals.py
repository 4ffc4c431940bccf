"""Where the program sets how often a line runs, as the source shows: the N of ``if step % N == 0:`` around it.

So it is the N of ``if step % N: return`` before it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec

from perfkit._location import Location
from perfkit.record.samplers.user_source import HotPlaces, UserSource, read_source
from perfkit.run.records import StepInterval


def find_intervals(places: HotPlaces) -> tuple[StepInterval, ...]:
    """The hottest lines that run in every N-th step, and those that lead to them: outside of training, in an update."""
    found = []
    for (file, line), at in (places.others | places.updates).items():
        if (set_at := _set_at(read_source(file), line)) is not None:
            place = Location(file=file, line=set_at, function=at.function)
            found.append(StepInterval(**msgspec.structs.asdict(at.at) | {"set_at": place}))
    return tuple(found)


def _set_at(source: UserSource, line: int) -> int | None:
    """The line that sets N, or that of the condition where N is a number or is set elsewhere."""
    function = source.function_at(line)
    around = [
        (one, every)
        for one in source.conditions
        if (
            one.body[0].lineno <= line <= (one.body[-1].end_lineno or 0)
            or _leaves_before(one, source.statement_at(line))
        )
        and source.function_at(one.lineno) is function
        and (every := _divisor(one.test)) is not None
    ]
    if not around:
        return None
    condition, every = around[-1]
    name = _name_of(every) if _decides(condition.test) else None
    return next(_settings(source.tree, name), condition.lineno) if name is not None else condition.lineno


def _decides(test: ast.expr) -> bool:
    """Whether N sets how often the block runs: no other test is enough by itself but a comparison of the same step."""
    if not isinstance(test, ast.BoolOp) or isinstance(test.op, ast.And):
        return True
    remainders = (one for one in ast.walk(test) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod))
    steps = {ast.unparse(one.left) for one in remainders}
    others = [one for one in test.values if _divisor(one) is None]
    return all(isinstance(one, ast.Compare) and ast.unparse(one.left) in steps for one in others)


def _leaves_before(condition: ast.If, statement: ast.stmt | None) -> bool:
    """Whether a statement comes after a condition that leaves the function, or this round of the loop."""
    return (
        statement is not None
        and isinstance(condition.body[-1], ast.Return | ast.Continue)
        and (condition.end_lineno or 0) < statement.lineno
        and condition.col_offset <= statement.col_offset
    )


def _divisor(test: ast.expr) -> ast.expr | None:
    """N of a test with ``... % N``."""
    remainders = (one for one in ast.walk(test) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod))
    return next((one.right for one in remainders), None)


def _name_of(node: ast.expr) -> str | None:
    """``every`` of ``every``, of ``config.every``, and of ``config["every"]``."""
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str) else None
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _settings(tree: ast.Module, name: str) -> Iterator[int]:
    """The lines that give a name a value which is no other name: of its own, as an argument, as a default."""
    assigned, given, defaults = [], [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_name_of(target) == name for target in targets) and _is_value(node.value):
                assigned.append(node.lineno)
        elif isinstance(node, ast.Call):
            given += [one.value.lineno for one in node.keywords if one.arg == name and _is_value(one.value)]
            options = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if any(option.lstrip("-").replace("-", "_") == name for option in options if option.startswith("--")):
                given.append(node.lineno)
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            given += [
                value.lineno
                for key, value in pairs
                if isinstance(key, ast.Constant) and key.value == name and _is_value(value)
            ]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args]
            positional = list(zip(reversed(arguments), reversed(node.args.defaults), strict=False))
            by_name = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            defaults += [one.lineno for argument, one in (*positional, *by_name) if argument.arg == name and one]
    yield from (*given, *assigned, *defaults)


def _is_value(node: ast.expr | None) -> bool:
    return node is not None and not isinstance(node, ast.Name | ast.Attribute)
