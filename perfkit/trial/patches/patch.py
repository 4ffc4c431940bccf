"""Changes as a unified diff of the user's files."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from perfkit.run.records import ChangedLine
from perfkit.source_edits.draft import Draft
from perfkit.source_edits.source import CannotWriteError, NotAsPlannedError
from perfkit.trial.catalog import ChosenChange
from perfkit.trial.patches.edits import Edit, FirstStatement, SetArgument, TrainerArgument
from perfkit.trial.patches.trainers import CONSTRUCTORS, find_constructor, kinds_of, library_of

#: Places that a reason names of a change that no machine can write.
_NAMED_PLACES = 3

#: One edit of one file.
_Step = Callable[[Draft], None]


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A diff, and what is in it.

    Attributes:
        diff: Unified, with the line ends of the files; empty where nothing could be edited. Written as UTF-8 it applies
            with ``git apply`` and ``patch -p1`` in the root.
        edited: (change, ``train.py:12``) of each edit.
        left: (change, reason) of each edit that a person must make.
    """

    diff: str
    edited: tuple[tuple[str, str], ...] = ()
    left: tuple[tuple[str, str], ...] = ()


def write_patch(
    applied: Sequence[tuple[ChosenChange, Sequence[ChangedLine]]], root: Path, script: Path | None = None
) -> Patch:
    """Write changes into the user's files below ``root``, at the lines that ran when each took effect.

    What holds for the whole program is written at the beginning of ``script``. Nothing is written to disk.
    """
    writer = _PatchWriter(root.resolve(), script and script.resolve())
    for chosen, places in applied:
        writer.add(chosen, places)
    return writer.patch()


class _PatchWriter:
    """Files, the edits to make in each, and what is left."""

    def __init__(self, root: Path, script: Path | None) -> None:
        self._root, self._script = root, script
        self._drafts: dict[Path, Draft] = {}
        #: File -> its edits so far, with the change and line of each.
        self._steps: dict[Path, list[tuple[_Step, str, int]]] = {}
        self._lines: dict[str, str] = {}
        self._left: dict[tuple[str, str], None] = {}

    def add(self, chosen: ChosenChange, places: Sequence[ChangedLine]) -> None:
        """Write one change at each of its places."""
        change = chosen.change
        first = next((edit for edit in change.edits if isinstance(edit, FirstStatement)), None)
        if change.kind == "bound":
            self._leave(chosen, "it is an upper bound, never an edit")
        elif first is not None:
            self._add_first(chosen, first, places)
        elif not change.edits and change.trainer == TrainerArgument():
            own = (self._name(self._root / one.file, one.line) for one in places if one.owner == "user")
            lines = list(dict.fromkeys(own))[:_NAMED_PLACES]
            self._leave(
                chosen, f"{', '.join(lines) or 'the program'} cannot be edited by machine: write {chosen.lines} by hand"
            )
        elif not places:
            self._leave(chosen, f"it took effect at no line of the program; a person would write {chosen.lines}")
        else:
            # From the top down: what encloses a statement comes before what is inside.
            for place in sorted(dict.fromkeys(places), key=lambda one: (one.file, one.line)):
                self._add_at(chosen, place)

    def patch(self) -> Patch:
        """The diff of all files."""
        pieces, edited = [], []
        for path, steps in sorted(self._steps.items()):
            new, kept = self._written(path, steps)
            try:
                pieces.append(_diff(self._drafts[path].source.original, new, self._name(path)).decode())
            except UnicodeDecodeError:
                for _, change, line in kept:
                    self._leave_line(change, path, line, "is not in UTF-8, as a diff must be")
                continue
            edited += [(change, self._name(path, line)) for _, change, line in kept]
        return Patch(diff="".join(pieces), edited=tuple(dict.fromkeys(edited)), left=tuple(self._left))

    def _add_first(self, chosen: ChosenChange, first: FirstStatement, places: Sequence[ChangedLine]) -> None:
        """Write it where the program itself sets it, or else for the whole program."""
        if [place for place in dict.fromkeys(places) if place.owner == "user" and self._is_edited(chosen, place)]:
            return
        if self._script is None:
            self._leave(chosen, f"it holds for the whole program: write {chosen.lines} by hand")
            return
        try:
            if self._give_to_trainer(chosen, [self._script], None):
                return
            self._do(self._script, chosen, 1, lambda draft: first.write(draft, None, chosen.value))
        except CannotWriteError as reason:
            self._leave(chosen, f"{self._name(self._script)} {reason}: write {chosen.lines} by hand")

    def _add_at(self, chosen: ChosenChange, place: ChangedLine) -> None:
        path = (self._root / place.file).resolve()
        here, library = self._name(path, place.line), library_of(place)
        files = [path, *([self._script] if self._script is not None else []), *self._drafts]
        try:
            if place.owner != "user":
                raise CannotWriteError(f"is {place.owner}'s")
            if library is not None:
                if not self._give_to_trainer(chosen, files, library):
                    raise CannotWriteError(f"does it through {library}")
                return
            try:
                self._edit(chosen, path, place)
            except CannotWriteError:
                # A model that a Trainer calls; an argument that the program itself gives stays its own.
                own = any(isinstance(edit, SetArgument) for edit in chosen.change.edits)
                if own or not self._give_to_trainer(chosen, files, None):
                    raise
        except CannotWriteError as reason:
            self._leave(chosen, f"{here} {reason}: write {self._by_hand(chosen, library)} by hand")

    def _is_edited(self, chosen: ChosenChange, place: ChangedLine) -> bool:
        try:
            self._edit(chosen, (self._root / place.file).resolve(), place)
        except CannotWriteError:
            return False
        return True

    def _edit(self, chosen: ChosenChange, path: Path, place: ChangedLine) -> None:
        reason = CannotWriteError("cannot be edited by machine")
        for edit in chosen.change.edits:
            if isinstance(edit, FirstStatement):
                continue
            try:
                self._do(path, chosen, place.line, _writing(edit, place, chosen))
                return
            except CannotWriteError as error:
                reason = error
        raise reason

    def _give_to_trainer(self, chosen: ChosenChange, files: Sequence[Path], library: str | None) -> bool:
        """Edit the call that makes the Trainer; False where none of the files has one with such an argument."""
        for kind in kinds_of(library):
            argument = chosen.change.trainer.of(kind)
            for path in dict.fromkeys(files) if argument is not None else ():
                call = find_constructor(self._draft(path), kind)
                if call is not None and argument is not None:
                    name, _, value = argument.format(value=chosen.value).partition("=")
                    index = list(self._draft(path).source.calls()).index(call)
                    self._do(path, chosen, call.lineno, _giving(index, name, value))
                    return True
        return False

    def _do(self, path: Path, chosen: ChosenChange, line: int, step: _Step) -> None:
        """Record an edit that can be made."""
        step(self._draft(path))
        self._steps.setdefault(path, []).append((step, str(chosen), line))
        self._lines[str(chosen)] = chosen.lines

    def _draft(self, path: Path) -> Draft:
        if not path.is_relative_to(self._root):
            raise CannotWriteError(f"lies outside of {self._root}")
        if path not in self._drafts:
            self._drafts[path] = Draft(path)
        return self._drafts[path]

    def _written(self, path: Path, steps: list[tuple[_Step, str, int]]) -> tuple[bytes, list[tuple[_Step, str, int]]]:
        """The edited file, and the edits in it: all, or where that is not as planned those that fit together."""
        original = self._drafts[path].source.original
        try:
            return self._drafts[path].write(), steps
        except (NotAsPlannedError, CannotWriteError):
            pass
        new = original
        kept: list[tuple[_Step, str, int]] = []
        for one in steps:
            draft = Draft(path)
            try:
                for step, _, _ in [*kept, one]:
                    step(draft)
                new, kept = draft.write(), [*kept, one]
            except (NotAsPlannedError, CannotWriteError):
                self._leave_line(one[1], path, one[2], "cannot be edited safely")
        return new, kept

    def _by_hand(self, chosen: ChosenChange, library: str | None) -> str:
        kinds = kinds_of(library) if library is not None else ()
        given = ((kind, chosen.change.trainer.of(kind)) for kind in kinds)
        text = (f"{CONSTRUCTORS[kind]}({one.format(value=chosen.value)})" for kind, one in given if one is not None)
        return next(text, chosen.lines)

    def _leave_line(self, change: str, path: Path, line: int, reason: str) -> None:
        self._left[change, f"{self._name(path, line)} {reason}: write {self._lines[change]} by hand"] = None

    def _leave(self, chosen: ChosenChange, reason: str) -> None:
        self._left[str(chosen), reason] = None

    def _name(self, path: Path, line: int | None = None) -> str:
        name = path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)
        return name if line is None else f"{name}:{line}"


def _writing(edit: Edit, place: ChangedLine, chosen: ChosenChange) -> _Step:
    return lambda draft: edit.write(draft, place, chosen.value)


def _giving(index: int, name: str, value: str) -> _Step:
    return lambda draft: draft.arguments([*draft.source.calls()][index]).want(name, value)


def _diff(old: bytes, new: bytes, name: str) -> bytes:
    """The unified diff of two files, byte by byte."""
    # In Latin-1 each byte is a character; git's lines end with \n and nothing else.
    before, after = ([f"{line}\n" for line in text.decode("latin-1").split("\n")] for text in (old, new))
    for lines in (before, after):
        lines[-1] = lines[-1][:-1]
        if not lines[-1]:
            lines.pop()
    tab = "\t" if " " in name else ""  # git's end of a name
    pieces: list[bytes] = []
    for line in difflib.unified_diff(before, after, f"a/{name}{tab}", f"b/{name}{tab}"):
        head = line.startswith(("--- ", "+++ ")) and not pieces[2:]
        pieces.append(line.encode() if head else line.encode("latin-1"))
        if not line.endswith("\n"):
            pieces.append(b"\n\\ No newline at end of file\n")
    return b"".join(pieces)
