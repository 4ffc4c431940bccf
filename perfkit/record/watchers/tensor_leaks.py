"""Finds tensors that outlive their step, and graphs that grow, by comparing what is alive between two steps.

The checks get rarer (each at twice the step of the one before), so that a month has a few dozen, and none comes before
their cost is a small share of the time that has passed. A check walks over the objects that Python's collector knows,
changes none and keeps weak references only.
"""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from perfkit import _clock
from perfkit._location import Location
from perfkit.record.live_objects import few_instances_of
from perfkit.record.program_values import is_plain, own_attributes, unseen
from perfkit.record.samplers.source_lookup import find_filling_lines, user_files
from perfkit.record.watchers._user_locals import locals_of, user_frames
from perfkit.run.records import KeptTensors

#: The step of the first check; a training has reached its usual state by then.
FIRST = 20
#: Objects above which nothing is checked: at 0.2 us each, a million take a fifth of a second.
_MAX_OBJECTS = 1_000_000
#: What checks may take: nothing in a run that is over within `_AFTER_NS`; then 0.15 s, which is two or three checks of
#: the 300,000 objects of a program with torch in it; and 1/200 of the time that has passed.
_AFTER_NS, _FREE_NS, _SHARE = 200_000_000, 150_000_000, 200
#: Tensors of one shape that are followed from check to check, and nodes of graphs that are counted.
_MAX_FOLLOWED = 1_000
_MAX_NODES = 20_000
#: Tensors whose graphs are counted one by one, where one graph has grown: a walk of the largest takes 10 ms.
_MAX_WALKED = 32
_NEWEST = 4
#: The graph that an attribute carries on has this share of the nodes of the largest (a plain majority).
_NEARLY = 0.5
#: Nodes that add to a gradient have the number 2 ** 64 - 1 instead of one of their own.
_NO_NUMBER = 2**63
#: A shape grows if there are this many more tensors per step, and this share of those of the last check is still alive:
#: code that replaces its tensors in each step keeps their number, not the tensors.
_PER_STEP = 0.5
_STAYED = 0.9
#: Tensors without a graph are reported from this many bytes per step on: a list of losses is no leak.
_MIN_BYTES = 1_000_000
#: Containers in containers that are climbed to find a name.
_MAX_DEPTH = 4

_Key = tuple[bool, tuple[int, ...]]


class TensorLeakWatch:
    """Checks the tensors that are alive between two steps; `leaks` are those that grow."""

    def __init__(self) -> None:
        self.next_step = FIRST
        self._started_ns = _clock.now_ns()
        self._took_ns = self._spent_ns = 0
        self._at = 0
        self._before: dict[_Key, tuple[int, list[weakref.ref[Any]]]] = {}
        self._nodes = _GraphNodes(0, [])
        self.leaks: tuple[KeptTensors, ...] = ()

    def check(self, step: int) -> bool:
        """Check if it is time to; returns whether it was. ``step`` is about to begin."""
        if step < self.next_step:
            return False
        passed_ns = _clock.now_ns() - self._started_ns
        wait_ns = max(_AFTER_NS, (self._spent_ns + self._took_ns - _FREE_NS) * _SHARE) - passed_ns
        if wait_ns > 0:
            # At the pace until now: a check some steps later is as good.
            self.next_step = step + max(FIRST, step * wait_ns // max(1, passed_ns))
            return False
        self.next_step = 2 * step
        # Processor time: on a busy machine most of the wall time is waiting for a turn, which steps need as well.
        started_ns = time.thread_time_ns()
        self._compare_with_last(step)
        self._took_ns = time.thread_time_ns() - started_ns
        self._spent_ns += self._took_ns
        return True

    @unseen
    def _compare_with_last(self, step: int) -> None:
        groups = _alive()
        if groups is None:
            return
        # As an argument alone: a list of them in a variable would be found as what holds them.
        nodes = _GraphNodes.of([tensor for (graph, _), group in groups.items() if graph for tensor in group])
        if self._at:
            self._compare(groups, nodes, step - self._at)
        self._at, self._nodes = step, nodes
        self._before = {
            key: (len(group), [weakref.ref(tensor) for tensor in group[:_MAX_FOLLOWED]])
            for key, group in groups.items()
        }

    def _compare(self, groups: dict[_Key, list[Any]], nodes: _GraphNodes, steps: int) -> None:
        leaks = []
        for (graph, shape), group in groups.items():
            count, followed = self._before.get((graph, shape), (0, []))
            stayed = sum(ref() is not None for ref in followed)
            grown = len(group) - count
            if not followed or grown < _PER_STEP * steps or stayed < _STAYED * len(followed):
                continue
            size = grown * group[0].element_size() * group[0].numel()
            # What refers to an object is only searched for leaks that are reported: it is expensive.
            name, places = _holder(group) if graph or size >= _MIN_BYTES * steps else (None, ())
            if graph and name is None:
                # No object of Python's holds them but the nodes of a graph that another tensor carries on.
                name, places = _largest_graph(groups)
            leaks.append(KeptTensors(steps=steps, grown=grown, grown_bytes=size, graph=graph, name=name, places=places))
        nodes_grown = nodes.grown_since(self._nodes)
        if not any(one.graph for one in leaks) and nodes_grown >= _PER_STEP * steps:
            name, places = _largest_graph(groups)
            leaks.append(
                KeptTensors(
                    steps=steps, grown=0, grown_bytes=0, graph=True, nodes_grown=nodes_grown, name=name, places=places
                )
            )
        self.leaks = tuple(sorted(leaks, key=lambda one: (not one.graph, -one.grown_bytes))[:8])


def _alive() -> dict[_Key, list[Any]] | None:
    """The tensors that are alive, by whether they carry a graph and by shape; None where there are too many objects."""
    # Exactly Tensor: parameters are the model's, and accessing a subclass may run its owner's code.
    tensors = few_instances_of(torch.Tensor, at_most=_MAX_OBJECTS)
    if tensors is None:
        return None
    groups: dict[_Key, list[Any]] = defaultdict(list)
    for one in tensors:
        if is_plain(one):
            groups[not one.is_leaf, tuple(one.shape)].append(one)
    return groups


class _GraphNodes(NamedTuple):
    """The graphs that are alive: how many tensors carry one, and the increasing numbers of all their nodes."""

    tensors: int
    numbers: list[int]

    @classmethod
    def of(cls, tensors: list[Any]) -> _GraphNodes:
        """The graphs of these tensors; the numbers are private, and without them no graph is followed."""
        numbers = [node._sequence_nr() for node in _walk(tensors) if hasattr(node, "_sequence_nr")]
        return cls(len(tensors), [number for number in numbers if number < _NO_NUMBER])

    def grown_since(self, before: _GraphNodes) -> int:
        """How many nodes one and the same graph gained: nearly all old nodes are still alive, with no tensor more."""
        last = max(before.numbers, default=-1)
        stayed = sum(number <= last for number in self.numbers)
        if not before.numbers or stayed < _STAYED * len(before.numbers):
            return 0
        # The nodes of new tensors are no growth of a graph.
        return len(self.numbers) - len(before.numbers) if self.tensors <= before.tensors else 0


def _walk(tensors: list[Any]) -> list[Any]:
    """Nodes of the graphs of these tensors, up to `_MAX_NODES`."""
    seen: dict[int, Any] = {}
    todo = [tensor.grad_fn for tensor in tensors]
    while todo and len(seen) < _MAX_NODES:
        node = todo.pop()
        # The node itself is kept, so that no other one gets its id.
        if node is not None and id(node) not in seen:
            seen[id(node)] = node
            todo.extend(following for following, _ in node.next_functions)
    return list(seen.values())


def _holder(group: list[Any]) -> tuple[str | None, tuple[Location, ...]]:
    """The name of what holds the tensors of a group, and the lines that put them there."""
    held: Any = group[-1]
    own = {id(group)}
    for _ in range(_MAX_DEPTH):
        name = _name_of(held)
        if name is not None:
            return name, _filling_lines(name)
        containers = [
            one for one in gc.get_referrers(held) if isinstance(one, list | tuple | dict | set) and id(one) not in own
        ]
        if not containers:
            break
        held = max(containers, key=len)
    return None, ()


def _name_of(held: Any) -> str | None:
    """The variable or attribute that is bound to exactly this object."""
    for frame in user_frames():
        for name, value in locals_of(frame):
            if value is held:
                return name
    return _attribute_of(held)


def _attribute_of(held: Any, besides: Sequence[int] = ()) -> str | None:
    """The attribute, or the key of a dictionary, that is bound to exactly this object; not in ``besides``, by id."""
    for one in gc.get_referrers(held):
        if type(one) is dict and id(one) in besides:
            continue
        # Objects of other classes may keep pointers into their attributes, as Dynamo's do.
        names = one if type(one) is dict else own_attributes(one)
        for name, value in list(names.items()):
            if value is held and isinstance(name, str) and name.isidentifier():
                return name
    return None


def _largest_graph(groups: dict[_Key, list[Any]]) -> tuple[str | None, tuple[Location, ...]]:
    """The user's local variable that carries the largest graph, and the lines that make it grow.

    An attribute with a graph of nearly that size comes first: it outlives the step, and the variables are made from it.
    """
    largest, name = 0, None
    for frame in user_frames():
        for each, value in locals_of(frame):
            if type(value) is torch.Tensor and not value.is_leaf and (nodes := len(_walk([value]))) > largest:
                largest, name = nodes, each
    # The newest ones of each shape: the others are inside of the graph.
    carrying = (tensor for (graph, _), group in groups.items() if graph for tensor in group[-_NEWEST:])
    # The variables of a script are those of its frame.
    variables = [id(frame.f_globals) for frame in user_frames()]
    for tensor in itertools.islice(carrying, _MAX_WALKED):
        if len(_walk([tensor])) < _NEARLY * largest:
            continue
        attribute = _attribute_of(tensor, variables)
        if attribute is not None and (places := _filling_lines(attribute)):
            return attribute, places
    return (name, _filling_lines(name)) if name is not None else (None, ())


def _filling_lines(name: str) -> tuple[Location, ...]:
    running = [frame.f_code.co_filename for frame in user_frames()]
    return find_filling_lines(name, dict.fromkeys((*running, *user_files())))
