"""Writes to parts of a tensor whose gradient is needed: each makes a node that copies the gradient of the whole."""

from __future__ import annotations

from collections import Counter

import numpy as np

from perfkit._location import Location
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.results.patterns import SliceWrites

#: autograd's node for a write to a view, as the profiler names it.
_NODE = "CopySlices"


def find_slice_writes(calls: OpCalls) -> SliceWrites | None:
    """The nodes of such writes, by the line that writes; None without any."""
    is_write = [calls.is_node[at] and name.endswith(_NODE) for at, name in enumerate(calls.names)]
    nodes = np.flatnonzero(np.array(is_write, bool))
    if not nodes.size:
        return None
    # autograd numbers a write first, and then the node around it: the op has the number before the node's.
    numbers = calls.trace.sequence[calls.rows]
    writer = dict(zip(numbers[calls.forward].tolist(), calls.forward.tolist(), strict=True))
    numbered = zip(nodes.tolist(), numbers[nodes].tolist(), strict=True)
    found = [(node, writer[number - 1]) for node, number in numbered if number - 1 in writer]
    by_place = Counter[Location | None]()
    for (node, _), at in zip(found, calls.locations([writes for _, writes in found]), strict=True):
        by_place[at] += int(calls.cost[node])
    return SliceWrites(
        count=nodes.size / calls.steps,
        ns=calls.per_step(calls.cost, nodes),
        at=by_place.most_common(1)[0][0] if by_place else None,
    )
