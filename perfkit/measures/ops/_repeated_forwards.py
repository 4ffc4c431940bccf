"""Forwards that the backward repeats: activation checkpointing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.measures._rows import launched_work, nearest_above
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.results.patterns import RepeatedForwards
from perfkit.measures.steps._trace_steps import backward_nodes
from perfkit.trace.columns import Kind

#: So many ops in the same order are the same part of the forward.
_ALIKE = 16
#: The node of `torch.utils.checkpoint` with use_reentrant=True: its forward runs without gradients, no op has a number.
_REENTRANT = "CheckpointFunctionBackward"


def find_repeated_forwards(calls: OpCalls) -> RepeatedForwards | None:
    """The forwards inside of the backward's nodes; None without any.

    A node that reads what was checkpointed first computes it again: ops of the forward, in its order, that make nodes
    (they have a number), and then its own ops, which make none. In a backward that is differentiated itself those of
    each node do, and are others than the forward's.
    """
    trace = calls.trace
    is_node = backward_nodes(trace)
    ops = np.flatnonzero(trace.is_kind(Kind.OP))
    node = nearest_above(trace, ops, is_node)
    # The nearest node counts: the reentrant form runs the backward of what it repeated inside of its own node. Around
    # the ops of a node is another one, with the node's name and number.
    inside = node >= 0
    ops, node = ops[inside], node[inside]
    numbered = trace.sequence[ops] >= 0
    own = numbered & (trace.sequence[ops] == trace.sequence[node])
    makes = numbered & ~own & ~is_node[ops]
    if not makes.any():
        return None
    is_around = is_node.copy()
    is_around[ops[own]] = True
    direct = ~own & is_around[nearest_above(trace, ops, trace.is_kind(Kind.OP))]
    order = np.flatnonzero(direct)[np.lexsort((trace.start_ns[ops[direct]], node[direct]))]
    ops, node, makes = ops[order], node[order], makes[order]
    forward = calls.rows[calls.forward]
    names = trace.name[forward[trace.sequence[forward] >= 0]]
    reentrant = np.isin(trace.name, [code for code, name in enumerate(trace.names) if _REENTRANT in name])
    within: list[int] = []
    last = np.zeros(len(trace), np.int64)
    for part in np.split(np.arange(ops.size), np.flatnonzero(node[1:] != node[:-1]) + 1):
        # The last op is the node's own.
        if not part.size or makes[part[-1]] or not makes[part].any():
            continue
        one, again = int(node[part[0]]), ops[part[makes[part]]]
        end_ns = int(trace.end_ns[again].max())
        alike = reentrant[one] or _holds(names, trace.name[again[:_ALIKE]])
        if alike and trace.start_ns[ops[part[-1]]] >= end_ns:
            within.append(one)
            last[one] = end_ns
    if not within:
        return None
    # From the node's start: the Python between the ops is the modules' own.
    host_ns = int((last[within] - trace.start_ns[within]).sum())
    backward_ns = int(trace.duration_ns[calls.rows[calls.is_node]].sum())
    device_ns = 0
    if calls.on_device:
        work = launched_work(trace)
        launch = trace.launch[work]
        by = nearest_above(trace, launch, is_node)
        launched = (by >= 0) & (trace.start_ns[launch] <= last[by])
        device_ns = int(trace.duration_ns[work[launched]].sum())
    return RepeatedForwards(
        count=len(within) / calls.steps,
        ns=(device_ns if calls.on_device else host_ns) // calls.steps,
        backward_share=min(1.0, host_ns / max(1, backward_ns)),
    )


def _holds(names: npt.NDArray[Any], part: npt.NDArray[Any]) -> bool:
    """Whether these names are in the others in one piece and in their order."""
    if part.size > names.size:
        return False
    return bool((np.lib.stride_tricks.sliding_window_view(names, part.size) == part).all(axis=1).any())
