"""The recorded steps again and again: a window begins with an empty device, training does not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfkit.replay._node_order import Nodes
from perfkit.trace.intervals import Bools, Ints

#: Steps that a replay runs. The device's queue, which is empty when a window begins, fills once in them: what that
#: takes is then a 48th of it per step, where a window of three steps would count a third.
STEPS = 48
#: Nodes that are run in all for that: 0.1 s.
MAX_NODES = 200_000


class StepsWindow(NamedTuple):
    """The nodes of the steps, in order, as a further round runs them.

    Where a node follows one that is before the first step, it follows the last one of its lane or stream instead, whose
    time is still that of the round before. ``waits`` is whether what it waits for is inside the steps.
    """

    node: Ints
    before: Ints
    launch: Ints
    waits: Bools
    rounds: int


def window_of(nodes: Nodes, inside: Bools, chain: Ints, steps: int) -> StepsWindow:
    """The window of the nodes that are ``inside`` the steps; ``chain`` is the lane or stream of each, -1 for none."""
    node = np.flatnonzero(inside)
    last = np.full(int(chain.max(initial=-1)) + 2, -1, np.int64)
    last[chain[node]] = node  # the last one written stays
    last[-1] = -1
    before = nodes.before[node]
    outside = (before < 0) | ~inside[before]
    wraps = outside & (chain[node] >= 0)
    before = np.where(wraps, last[chain[node]], np.where(outside, -1, before))
    launch = nodes.launch[node]
    launch = np.where((launch > 0) & ~inside[launch], -1, launch)
    wait = nodes.wait[node]
    rounds = max(1, min(-(-STEPS // steps), MAX_NODES // max(1, node.size)))
    return StepsWindow(node, before, launch, (wait >= 0) & inside[wait], rounds)
