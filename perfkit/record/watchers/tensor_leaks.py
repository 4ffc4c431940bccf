"""Tensors that outlive their step, and graphs that grow: a look at what is alive between two steps, now and then.

The looks come further and further apart (each at twice the step of the one before), so that a month has a few dozen,
and not before what they take is little of the time that has passed. One walks over the objects that Python's
collector knows, changes none and keeps weak references only.
"""

from __future__ import annotations

import gc
import inspect
import sys
import time
import weakref
from collections import defaultdict
from types import FrameType
from typing import Any, NamedTuple

from perfkit import _clock
from perfkit._code_owner import USER, line_of, owner_of
from perfkit._location import Location
from perfkit.record.samplers.source_lookup import lines_that_fill, user_files
from perfkit.run.records import KeptTensors

#: The first look; a training has reached its usual state by then.
FIRST = 20
#: Objects above which nothing is looked at: at 0.2 us each a fifth of a second for a million.
_MOST_OBJECTS = 1_000_000
#: What looks may take: nothing in a run that is over at once; then 0.15 s, which is two or three looks at the
#: 300,000 objects of a program with torch in it, and 1/200 of the time that has passed.
_AFTER_NS, _FREE_NS, _SHARE = 200_000_000, 150_000_000, 200
#: Tensors of one shape that are followed from look to look, and nodes of graphs that are counted.
_FOLLOWED = 1_000
_MOST_NODES = 20_000
#: From here on a node's number is none: 2 ** 64 - 1 is what nodes have that add to a gradient.
_NO_NUMBER = 2**63
#: A shape grows if this many tensors come for a step, and of those of the last look so many are still there: what
#: replaces its tensors in each step keeps their number and not the tensors.
_PER_STEP = 0.5
_STAYED = 0.9
#: Tensors without a graph are told from this many bytes per step on: a list of losses is no leak.
WORTH_TELLING = 1_000_000
#: Containers in containers that are climbed to find a name.
_DEEP = 4

_Key = tuple[bool, tuple[int, ...]]


class TensorWatch:
    """Looks at the tensors that are alive between two steps, and says which grow."""

    def __init__(self) -> None:
        self.next = FIRST
        self._began = _clock.now_ns()
        self._took_ns = self._spent_ns = 0
        self._at = 0
        self._before: dict[_Key, tuple[int, list[weakref.ref[Any]]]] = {}
        self._nodes = _Nodes(0, [])
        self.kept: tuple[KeptTensors, ...] = ()

    def look(self, step: int) -> bool:
        """Look, if it is time to; whether it was. ``step`` is about to begin."""
        if step < self.next:
            return False
        passed = _clock.now_ns() - self._began
        wait_ns = max(_AFTER_NS, (self._spent_ns + self._took_ns - _FREE_NS) * _SHARE) - passed
        if wait_ns > 0:
            # At the pace until now: a look some steps later is as good.
            self.next = step + max(FIRST, step * wait_ns // max(1, passed))
            return False
        self.next = 2 * step
        if "torch" not in sys.modules:
            return False
        # Processor time: on a busy machine most of the wall time is waiting for a turn, which comes later as well.
        began = time.thread_time_ns()
        self._compare_with_last(step)
        self._took_ns = time.thread_time_ns() - began
        self._spent_ns += self._took_ns
        return True

    def _compare_with_last(self, step: int) -> None:
        groups = _alive()
        if groups is None:
            return
        # As an argument alone: a list of them that lives on would be found as their holder.
        nodes = _Nodes.of([tensor for (graph, _), group in groups.items() if graph for tensor in group])
        if self._at:
            self._compare(groups, nodes, step - self._at)
        self._at, self._nodes = step, nodes
        self._before = {
            key: (len(group), [weakref.ref(tensor) for tensor in group[:_FOLLOWED]]) for key, group in groups.items()
        }

    def _compare(self, groups: dict[_Key, list[Any]], nodes: _Nodes, steps: int) -> None:
        kept = []
        for (graph, shape), group in groups.items():
            count, followed = self._before.get((graph, shape), (0, []))
            stayed = sum(ref() is not None for ref in followed)
            grown = len(group) - count
            if not followed or grown < _PER_STEP * steps or stayed < _STAYED * len(followed):
                continue
            size = grown * group[0].element_size() * group[0].numel()
            # Objects are asked who refers to them only where it is worth telling.
            name, places = _holder(group) if graph or size >= WORTH_TELLING * steps else (None, ())
            kept.append(KeptTensors(steps=steps, grown=grown, grown_bytes=size, graph=graph, name=name, places=places))
        grown_nodes = nodes.beyond(self._nodes)
        if not any(one.graph for one in kept) and grown_nodes >= _PER_STEP * steps:
            name, places = _largest_graph()
            kept.append(
                KeptTensors(
                    steps=steps, grown=0, grown_bytes=0, graph=True, nodes_grown=grown_nodes, name=name, places=places
                )
            )
        self.kept = tuple(sorted(kept, key=lambda one: (not one.graph, -one.grown_bytes))[:8])


def _alive() -> dict[_Key, list[Any]] | None:
    """The tensors that are alive, by whether they carry a graph and by shape; None where there are too many objects."""
    import torch

    objects = gc.get_objects()
    if len(objects) > _MOST_OBJECTS:
        return None
    # Exactly Tensor: parameters are the model's, and subclasses may run their owner's code when asked.
    kind = torch.Tensor
    groups: dict[_Key, list[Any]] = defaultdict(list)
    for one in [one for one in objects if type(one) is kind]:
        if one.layout == torch.strided:
            groups[not one.is_leaf, tuple(one.shape)].append(one)
    return groups


class _Nodes(NamedTuple):
    """The graphs that are alive: how many tensors carry one, and the numbers of all their nodes, which rise."""

    tensors: int
    numbers: list[int]

    @classmethod
    def of(cls, tensors: list[Any]) -> _Nodes:
        """Of the graphs of these tensors; a private number, without which no graph is followed."""
        numbers = [node._sequence_nr() for node in _walk(tensors) if hasattr(node, "_sequence_nr")]
        # Nodes that only add to a gradient have no number of their own, but the largest.
        return cls(len(tensors), [number for number in numbers if number < _NO_NUMBER])

    def beyond(self, before: _Nodes) -> int:
        """How many nodes one and the same graph gained: nearly all that were there still are, and no tensor more."""
        last = max(before.numbers, default=-1)
        stayed = sum(number <= last for number in self.numbers)
        if not before.numbers or stayed < _STAYED * len(before.numbers):
            return 0
        # What new tensors bring along is no growth of a graph.
        return len(self.numbers) - len(before.numbers) if self.tensors <= before.tensors else 0


def _walk(tensors: list[Any]) -> list[Any]:
    """Nodes of the graphs of these tensors, up to `_MOST_NODES`."""
    seen: dict[int, Any] = {}
    todo = [tensor.grad_fn for tensor in tensors]
    while todo and len(seen) < _MOST_NODES:
        node = todo.pop()
        # The node itself is kept, so that no other one gets its id.
        if node is not None and id(node) not in seen:
            seen[id(node)] = node
            todo.extend(following for following, _ in node.next_functions)
    return list(seen.values())


def user_frames() -> list[FrameType]:
    """The frames of the user's that are running on this thread, innermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if owner_of(frame.f_code.co_filename) == USER:
            frames.append(frame)
        frame = frame.f_back
    return frames


def _locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The local variables of a running frame, of which nothing is kept."""
    snapshot = frame.f_locals
    found = list(snapshot.items())
    # Before Python 3.13 a function's frame keeps what was asked for, and with it a batch or a graph, until it ends. It
    # is emptied if nobody else has it (the frame, the variable, the argument): `locals()` gives the program the same.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(snapshot) == 3:
        snapshot.clear()
    return found


class LocalGraphs:
    """Local tensors with a graph, in the innermost of the user's frames, that came since the last look."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []

    def look(self) -> Location | None:
        """The line that bound one that the last look did not see; None where none is."""
        import torch

        frames = user_frames()[:1]
        found = [
            (name, value, frame.f_code, line_of(frame))
            for frame in frames
            for name, value in _locals_of(frame)
            if type(value) is torch.Tensor and not value.is_leaf
        ]
        known = [ref() for ref in self._known]
        self._known = [weakref.ref(value) for _, value, _, _ in found]
        for name, value, code, line in found:
            if not any(value is one for one in known):
                file = code.co_filename
                bound = Location(file=file, line=line, function=code.co_name)
                return next(iter(lines_that_fill(name, (file,))), bound)
        return None


def _holder(group: list[Any]) -> tuple[str | None, tuple[Location, ...]]:
    """What holds the tensors of a group, and the lines that put them there."""
    held: Any = group[-1]
    mine = {id(group)}
    for _ in range(_DEEP):
        name = _name_of(held)
        if name is not None:
            return name, _fills(name)
        containers = [
            one for one in gc.get_referrers(held) if isinstance(one, list | tuple | dict | set) and id(one) not in mine
        ]
        if not containers:
            break
        held = max(containers, key=len)
    return None, ()


def _name_of(held: Any) -> str | None:
    """The variable or attribute that is bound to exactly this object."""
    for frame in user_frames():
        for name, value in _locals_of(frame):
            if value is held:
                return name
    for one in gc.get_referrers(held):
        if type(one) is dict:
            names = one
        elif owner_of(getattr(sys.modules.get(type(one).__module__), "__file__", None) or "<unknown>") == USER:
            # An object of the user's own class. Others may keep pointers into their attributes, as Dynamo's do.
            names = getattr(one, "__dict__", {})
        else:
            continue
        for name, value in list(names.items()):
            if value is held and isinstance(name, str) and name.isidentifier():
                return name
    return None


def _largest_graph() -> tuple[str | None, tuple[Location, ...]]:
    """The user's local that carries the largest graph, and the lines that make it grow."""
    import torch

    largest, name = 0, None
    for frame in user_frames():
        for each, value in _locals_of(frame):
            if type(value) is torch.Tensor and not value.is_leaf and (nodes := len(_walk([value]))) > largest:
                largest, name = nodes, each
    return (name, _fills(name)) if name is not None else (None, ())


def _fills(name: str) -> tuple[Location, ...]:
    running = [frame.f_code.co_filename for frame in user_frames()]
    return lines_that_fill(name, dict.fromkeys((*running, *user_files())))
