"""What a sampled stack shows: the user's line, the libraries that it had called, and the call path.

A training loop is at the same few hundred stacks again and again, and a thread that has just been woken reads memory
that is in no cache. So what a stack shows is found once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import CodeType

from perfkit._code_owner import IMPORTING, USER, function_name, is_own_stack, library_of, owner_of
from perfkit._location import Location
from perfkit.record.samplers.call_path_tree import CallPathTree
from perfkit.run.records import Phase

#: Libraries kept of one stack, from the user's line on: what it called, not how that library works inside.
_MAX_LIBRARIES = 6
#: Stacks that are kept, at 2 to 3 kB each: when there are more, all are forgotten, as those of the set-up should be.
_MAX_STACKS = 500
#: Frames of a stack that is kept: that of a recursion rarely comes again.
_MAX_FRAMES = 100
#: Stands for a library's function that saves a checkpoint, and for everything that it calls (moving, copying, writing).
CHECKPOINT = "checkpoint"
#: Where a loader fetches a batch, and classes kept of a stack there, outermost first: those of the library's dataset,
#: of its transforms, and of the transform that runs.
LOADER = "torch.utils.data"
_MAX_OBJECTS = 5
_SAVING = frozenset({"save_checkpoint", "_save_checkpoint", "save_pretrained", "save_state", "save_weights"})


class SampledLine(Location, frozen=True, kw_only=True):
    """The user's line of a stack (else a library's), the libraries that it had called, and who called its function.

    Where a loader fetched a batch, ``objects`` are the libraries' classes whose methods ran, or the user's class whose
    method a library called, as it calls a dataset's transform.
    """

    within: str = ""
    objects: tuple[str, ...] = ()
    called_from: Location | None = None


class SampledStacks:
    """Gives each stack of a phase the user's line and the node of its call path."""

    def __init__(self) -> None:
        self.paths = CallPathTree()
        #: What was found, with the code of the stack's frames: as long as that lives, no other has its number.
        self._known: dict[tuple[object, ...], tuple[SampledLine | None, int | None, tuple[CodeType, ...]]] = {}

    def of(self, phase: Phase, stack: Sequence[tuple[CodeType, int]]) -> tuple[SampledLine | None, int | None]:
        """Line and node of a stack, innermost frame first; None for what perfkit does, and where there is none."""
        # The number of a code object: its hash goes through all its constants.
        key = (phase, *(number for code, line in stack for number in (id(code), line)))
        found = self._known.get(key)
        if found is None:
            found = *self._find(phase, stack), tuple(code for code, _ in stack)
            if len(self._known) >= _MAX_STACKS:
                self._known.clear()
            if len(stack) <= _MAX_FRAMES:
                self._known[key] = found
        return found[:2]

    def _find(self, phase: Phase, stack: Sequence[tuple[CodeType, int]]) -> tuple[SampledLine | None, int | None]:
        line = find_line(stack)
        if line is None or is_own_stack(stack):
            return None, None
        return line, self.paths.node_of(phase, stack)


def find_line(stack: Sequence[tuple[CodeType, int]]) -> SampledLine | None:
    """The user's line of a stack, else a library's, with the libraries that it had called.

    None in an import, which comes once: no line of the loop takes that time in later steps.
    """
    library: SampledLine | None = None
    called: list[str] = []
    objects: list[str] = []
    for depth, (code, line) in enumerate(stack):
        file = code.co_filename
        owner = owner_of(file)
        if owner == USER:
            function = function_name(code)
            return SampledLine(
                file=file,
                line=line,
                function=function,
                within=" > ".join(called[: -_MAX_LIBRARIES - 1 : -1]),
                objects=tuple(objects[: -_MAX_OBJECTS - 1 : -1])
                if called and called[-1] == LOADER
                else _called_by_library(stack[depth:]),
                called_from=_find_caller(stack[depth + 1 :], file, function),
            )
        if file == IMPORTING:
            return None
        if owner != "perfkit":
            name = CHECKPOINT if code.co_name in _SAVING else library_of(file)
            if not called or called[-1] != name:
                called.append(name)
            if owner not in ("torch", "python") and (name := _class_of(code)) and name not in objects:
                objects.append(name)
            if library is None and owner not in ("torch", "python"):
                library = SampledLine(file=file, line=line, function=function_name(code), owner=owner)
    return library


def _class_of(code: CodeType) -> str:
    """The class that a method is defined in; empty for a function, and for one inside another."""
    return function_name(code).rpartition(".")[0].rpartition(".")[2].replace("<locals>", "")


def _called_by_library(stack: Sequence[tuple[CodeType, int]]) -> tuple[str, ...]:
    """The class of the user's method that a stack begins with, if a library calls it for a batch of a loader."""
    callers = itertools.takewhile(lambda file: owner_of(file) != USER, (code.co_filename for code, _ in stack[1:]))
    libraries = [library_of(file) for file in callers]
    by_library = LOADER in libraries[1:] and owner_of(stack[1][0].co_filename) not in ("torch", "python", "perfkit")
    name = _class_of(stack[0][0]) if by_library else ""
    return (name,) if name else ()


def _find_caller(stack: Sequence[tuple[CodeType, int]], file: str, function: str) -> Location | None:
    """The next line outwards in another function of the user's; a comprehension is a line of its function."""
    for code, line in stack:
        if owner_of(code.co_filename) == USER:
            name = function_name(code)
            if name != function or code.co_filename != file:
                return Location(file=code.co_filename, line=line, function=name)
    return None
