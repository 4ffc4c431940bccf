"""What events are grouped by: the shapes of an op's inputs, the module, the user's line, the step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from perfkit.measures._durations import durations_by
from perfkit.measures._rows import nearest_above
from perfkit.measures.device._origins import lines_of
from perfkit.measures.device.roofline import shapes_text
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.results.groups import GroupTime
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import CodeTable, Kind, Trace
from perfkit.trace.intervals import Codes, Ints

#: How torch names the frame of a module's call (``nn.Module: Linear_0``).
_MODULE = re.compile(r"^nn\.Module: ")
#: Ranges that torch makes itself, around loaders and optimizers.
_NO_MODULE = re.compile(r"^(?:enumerate\((?:DataLoader|DataPipe)\)#|Optimizer\.)")
_SHAPES = ("Input Dims", "Input dims")

#: For each row the number of its key, and the keys: None for what the trace does not show.
Keys = tuple[Ints, list[Any]]


def keys_of(trace: Trace, rows: Ints, by: str) -> Keys | None:
    """The keys of these rows of the host (ops, API calls; -1 for none); None where the trace cannot have any."""
    return _KEYS[by](trace, rows)


def group_times(
    trace: Trace, rows: Ints, names: Codes, keys: Keys, more: Callable[[int, Ints], dict[str, Any]] | None = None
) -> list[GroupTime]:
    """The durations of rows by name and key, longest total first.

    Args:
        trace: The trace.
        rows: Rows whose durations count.
        names: For each of them the code of its name, in ``trace.names``.
        keys: Their keys.
        more: Called with the number of a group, as in the second argument's, for further fields of its row.
    """
    if not rows.size:
        return []
    code, labels = keys
    pairs, group = np.unique(np.stack([names, code], axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    texts = [trace.names[name] for name in pairs[:, 0].tolist()]
    return [
        GroupTime(**(times | (more(number, group) if more is not None else {})), key=labels[int(pairs[number, 1])])
        for number, times in durations_by(group, texts, trace, rows)
    ]


def _by_step(trace: Trace, rows: Ints) -> Keys | None:
    steps = whole_steps(trace)
    if not steps.row.size:
        return None
    found = np.full(rows.size, -1, np.int64)
    found[rows >= 0] = step_of(steps, trace.start_ns[rows[rows >= 0]])
    return _labelled(found, steps.number.tolist())


def _by_line(trace: Trace, rows: Ints) -> Keys | None:
    lines = lines_of(trace, rows)
    if not any(lines):
        return None
    codes: CodeTable = CodeTable()
    found = [codes[None if at is None else _place(at.file, at.line, at.function)] for at in lines]
    return np.array(found, np.int64), list(codes)


def _place(file: str, line: int | None, function: str | None) -> str:
    return f"{file}:{line}" if line is not None else f"{file}: {function}"


def _by_module(trace: Trace, rows: Ints) -> Keys | None:
    """The innermost module's frame around each row, else the innermost range of the user's.

    What ran in the backward belongs to the module whose op made its node.
    """
    is_module = trace.is_kind(Kind.PYTHON) & trace.name_matches(_MODULE)
    if not is_module.any():
        is_module = np.zeros(len(trace), bool)
        is_module[trace.ranges] = True
        is_module &= ~trace.name_matches(_NO_MODULE)
    if not is_module.any():
        return None
    backward = pair_backward(trace)
    maker = np.full(len(trace), -1, np.int64)
    maker[backward.node] = backward.maker
    known = rows >= 0
    place = rows[known].copy()
    node = np.where(backward.is_node[place], place, nearest_above(trace, place, backward.is_node))
    made = (node >= 0) & (maker[np.maximum(node, 0)] >= 0)
    place[made] = maker[node[made]]
    around = np.where(is_module[place], place, nearest_above(trace, place, is_module))
    found = np.full(rows.size, -1, np.int64)
    codes: CodeTable = CodeTable()
    names = [codes[trace.names[trace.name[row]]] if row >= 0 else -1 for row in around.tolist()]
    found[known] = names
    return _labelled(found, list(codes))


def _by_shape(trace: Trace, rows: Ints) -> Keys | None:
    """The shapes of the inputs of each row's op: the row itself, or the innermost op around it that has some."""
    fields = trace.fields(np.maximum(rows, 0), _SHAPES)
    codes: CodeTable = CodeTable()
    texts = [
        [codes[text] if (text := _text(value)) else -1 for value in (*field.values, None)]
        for field in (fields[key] for key in _SHAPES)
    ]
    new, old = (np.array(table, np.int64)[fields[key].codes] for table, key in zip(texts, _SHAPES, strict=True))
    found = np.where(rows < 0, -1, np.where(new >= 0, new, old))
    return _labelled(found, list(codes))


def _text(dims: Any) -> str:
    return shapes_text(dims) if isinstance(dims, list) else ""


def _labelled(found: Ints, labels: list[Any]) -> Keys | None:
    """Keys in which -1 is None; None where all of them are."""
    if not (found >= 0).any():
        return None
    return np.where(found >= 0, found, len(labels)), [*labels, None]


_KEYS: dict[str, Callable[[Trace, Ints], Keys | None]] = {
    "step": _by_step,
    "line": _by_line,
    "module": _by_module,
    "shape": _by_shape,
}
