"""The call paths of samples as a tree: what a flame graph of the training thread is drawn from.

A path begins at the user's outermost frame, because what started the program is no part of its work. Of the user's
frames it has each line; of libraries, whose inside nobody here can change, the innermost function of each stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CodeType

from perfkit._code_owner import COMPREHENSIONS, USER, function_name, library_of, owner_of
from perfkit._location import Location
from perfkit.run.records import CallPaths, Phase

#: Nodes kept, at about 250 bytes each. A training loop has some hundred. Beyond that, a sample counts for the part of
#: its path that is known.
_MAX_NODES = 5_000
#: Frames of one path, from the outermost on: a person follows no deeper one, and recursion has no end.
_MAX_DEPTH = 60

#: What torch.nn.Module has around each forward.
_CALLING = ("_call_impl", "_wrapped_call_impl")

#: The file, the line and the code of a user's frame; of a library, its name, None, and the code of its function.
_Frame = tuple[str, "int | None", CodeType]


class CallPathTree:
    """Gives each call path of a phase a number, that of its innermost node."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int | Phase, _Frame], int] = {}
        #: Node -> its parent (a phase for an outermost one) and its frame.
        self._parents: list[tuple[int | Phase, _Frame]] = []

    def node_of(self, phase: Phase, stack: Sequence[tuple[CodeType, int]]) -> int | None:
        """The node of a stack, innermost frame first; None where none is kept."""
        above: int | Phase = phase
        for frame in _frames(stack):
            node = self._nodes.get((above, frame))
            if node is None:
                if len(self._parents) >= _MAX_NODES:
                    break
                node = self._nodes[above, frame] = len(self._parents)
                self._parents.append((above, frame))
            above = node
        return above if isinstance(above, int) else None

    def record(self, samples: dict[int, int]) -> CallPaths:
        """The tree as it is kept, of the nodes with ``samples`` and those above them."""
        kept: set[int | Phase] = set()
        for node in samples:
            above: int | Phase = node
            while isinstance(above, int) and above not in kept:
                kept.add(above)
                above = self._parents[above][0]
        # A node's number is larger than its parent's.
        places: dict[int | Phase, int] = {}
        frames: dict[_Frame, int] = {}
        columns: list[tuple[int, int, Phase, int]] = []
        for node, (above, frame) in enumerate(self._parents):
            if node not in kept:
                continue
            parent = places.get(above, -1)
            phase: Phase = columns[parent][2] if isinstance(above, int) else above
            places[node] = len(columns)
            columns.append((frames.setdefault(frame, len(frames)), parent, phase, samples.get(node, 0)))
        return CallPaths(
            frames=tuple(map(_location, frames)),
            frame=tuple(column[0] for column in columns),
            parent=tuple(column[1] for column in columns),
            phase=tuple(column[2] for column in columns),
            samples=tuple(column[3] for column in columns),
        )


def _frames(stack: Sequence[tuple[CodeType, int]]) -> Iterable[_Frame]:
    """The frames of a path, outermost first."""
    found: list[_Frame] = []
    for code, line in reversed(stack):
        file = code.co_filename
        owner = owner_of(file)
        if owner == USER:
            # Before Python 3.12 a comprehension runs in a frame of its own, on the same line.
            if not (found and found[-1][:2] == (file, line) and code.co_name in COMPREHENSIONS):
                found.append((file, line, code))
        elif found and owner != "perfkit" and code.co_name not in _CALLING:
            frame = (library_of(file), None, code)
            if found[-1][1] is None and found[-1][0] == frame[0]:
                found[-1] = frame
            else:
                found.append(frame)
    return found[:_MAX_DEPTH]


def _location(frame: _Frame) -> Location:
    file, line, code = frame
    owner = owner_of(code.co_filename)
    return Location(file=file, line=line, function=function_name(code), owner=owner)
