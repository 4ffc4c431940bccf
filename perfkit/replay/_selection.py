"""Which tasks a change is about: those of the steps, of a cause, or of names that match a pattern."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from perfkit._text import printable
from perfkit.errors import UsageError
from perfkit.measures._rows import mask_of
from perfkit.measures.device._idle import CODE
from perfkit.measures.results.device import IdleCause
from perfkit.measures.steps._phase_times import phase_times
from perfkit.measures.steps._trace_steps import backward_nodes
from perfkit.replay.task_graph import TaskGraph
from perfkit.trace.columns import DEVICE_KINDS, HOST_KINDS, Kind, Trace
from perfkit.trace.intervals import Bools, Ints, covered_before

#: Names that an error lists: as many as fit two lines of a terminal.
_NEAREST = 3


class Selected(NamedTuple):
    """A mask of the host's pieces and one of the device's tasks."""

    pieces: Bools
    tasks: Bools


def active(graph: TaskGraph) -> Selected:
    """The tasks of the steps: what was before the first one, or launched before it, is left as it is."""
    return Selected(graph.piece_step >= 0, graph.task_step >= 0)


def caused_by(graph: TaskGraph, *causes: IdleCause) -> Bools:
    """The pieces of the steps in which the host did one of these."""
    codes = np.array([CODE[cause] for cause in causes])
    return active(graph).pieces & np.isin(graph.lanes.cause, codes)


def loading(graph: TaskGraph) -> Bools:
    """The pieces in which the loop waited for its next batch."""
    lanes, data = graph.lanes, phase_times(graph.trace).get("data")
    if data is None:
        return caused_by(graph, "data loading")
    inside = covered_before(data, lanes.ends) > covered_before(data, lanes.starts)
    inside[lanes.first[1] :] = False
    return active(graph).pieces & inside


def matching_rows(trace: Trace, pattern: str) -> Bools:
    """The rows of the host and of devices whose name matches a glob pattern.

    Raises:
        UsageError: none does; the message has the nearest names.
    """
    wanted = trace.is_kind(*HOST_KINDS, *DEVICE_KINDS)
    used = np.flatnonzero(np.bincount(trace.name[wanted], minlength=len(trace.names))).tolist()
    hit = np.zeros(len(trace.names), bool)
    hit[[code for code in used if fnmatchcase(trace.names[code], pattern)]] = True
    if not hit.any():
        raise UsageError(_no_match(pattern, [trace.names[code] for code in used]))
    return wanted & hit[trace.name]


def _no_match(pattern: str, names: list[str]) -> str:
    plain = pattern.strip("*")
    near = [name for name in names if plain and plain.lower() in name.lower()]
    short = {name[:200]: name for name in names}
    near += [short[name] for name in difflib.get_close_matches(plain[:200], list(short), _NEAREST, 0.4)]
    shown = ", ".join(repr(printable(name[:80])) for name in list(dict.fromkeys(near))[:_NEAREST])
    hint = f"the nearest are {shown}" if shown else "perfkit diagnose PATH --all lists what is in it"
    return f"no op, kernel, range or module of the trace matches {pattern!r}: {hint}; * stands for any text"


def owner_rows(graph: TaskGraph) -> Ints:
    """The event that each piece of the host belongs to, -1 for none.

    That is the innermost one; of the time between two nodes of a backward it is the next node, which autograd prepares
    then: without the node that time is gone too.
    """
    trace, row = graph.trace, graph.lanes.row
    is_op, is_node = trace.is_kind(Kind.OP), backward_nodes(trace)
    in_op, in_node = ((row >= 0) & (of | (trace.above(of) >= 0))[row] for of in (is_op, is_node))
    between = np.zeros(row.size, bool)
    between[1:-1] = ~in_op[1:-1] & in_node[:-2] & in_node[2:]
    return np.where(between, np.roll(row, -1), row)


def below(graph: TaskGraph, rows: Bools) -> Selected:
    """The tasks of these rows and of all that they called or launched, of the steps.

    Of a range or a module also the backward of what ran in it, by autograd's sequence numbers.
    """
    trace, tasks, owner = graph.trace, graph.tasks, owner_rows(graph)
    host = rows & trace.is_kind(*HOST_KINDS)
    under = host | (trace.above(host) >= 0)
    if (rows & trace.is_kind(Kind.RANGE, Kind.PYTHON)).any():
        nodes = _backward_of(trace, under)
        under |= nodes | (trace.above(nodes) >= 0)
    steps = active(graph)
    pieces = steps.pieces & (owner >= 0) & under[owner]
    launched = (tasks.launch >= 0) & under[tasks.launch]
    return Selected(pieces, steps.tasks & (launched | rows[tasks.row]))


def _backward_of(trace: Trace, under: Bools) -> Bools:
    """The backward nodes of the ops below some rows."""
    nodes, of = forward_ops(trace)
    return mask_of(trace, nodes[under[of]])


def forward_ops(trace: Trace) -> tuple[Ints, Ints]:
    """The backward nodes whose op of the forward is in the trace, and that op of each; both as rows."""
    is_node = backward_nodes(trace)
    nodes = np.flatnonzero(is_node & (trace.sequence >= 0))
    # What runs in a node has the node's number too.
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.sequence >= 0) & ~is_node & (trace.above(is_node) < 0))
    if not _are_small(trace):
        return nodes[:0], nodes[:0]
    # An op without a node of its own carries the number of the next one: the last op of a number has the node.
    ops = ops[np.argsort(trace.start_ns[ops], kind="stable")]
    last = np.full(int(trace.sequence.max(initial=-1)) + 1, -1, np.int64)
    last[trace.sequence[ops]] = ops
    of = last[trace.sequence[nodes]]
    return nodes[of >= 0], of[of >= 0]


def _are_small(trace: Trace) -> bool:
    """Whether sequence numbers can index an array: a damaged file may claim any."""
    return int(trace.sequence.max(initial=-1)) < 2**26
