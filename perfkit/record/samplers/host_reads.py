"""Lines that read the values of tensors, as the source shows: ``torch.quantile(x, levels).tolist()``."""

from __future__ import annotations

import ast

from perfkit._location import Location
from perfkit.record.samplers.user_source import HotPlaces, read_source

#: Methods of a tensor that give its values to the host, without an argument.
_READS = frozenset({"tolist", "item", "numpy", "cpu"})


def find_host_reads(places: HotPlaces) -> tuple[Location, ...]:
    """The hottest lines outside of training, and those that lead to them, whose statement reads values."""
    return tuple(
        at.at for (file, line), at in places.others.items() if _reads(read_source(file).statement_at(line), line)
    )


def _reads(statement: ast.stmt | None, line: int) -> bool:
    """Whether an expression of this line of the statement does: a dictionary has one for each of its values."""
    return statement is not None and any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in _READS
        and not one.args
        and one.lineno <= line <= (one.end_lineno or one.lineno)
        for one in ast.walk(statement)
    )
