"""Metrics of torchmetrics that are called where ``update`` would do, because nothing reads the value of the batch."""

from __future__ import annotations

import ast

from perfkit.record.samplers.user_source import read_source

_BASES = frozenset({"Metric", "MetricCollection"})


def drops_value(kind: type, file: str, line: int) -> bool:
    """Whether objects of this class are such metrics, and the line is a statement that calls one and keeps nothing."""
    if not any(one.__name__ in _BASES and one.__module__.startswith("torchmetrics.") for one in kind.__mro__):
        return False
    statement = read_source(file).statement_at(line)
    call = statement.value if isinstance(statement, ast.Expr) else None
    # A call among the arguments may be the metric's, whose value the statement's call gets.
    return isinstance(call, ast.Call) and sum(isinstance(one, ast.Call) for one in ast.walk(call)) == 1
