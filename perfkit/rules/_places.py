"""The line to edit, where it is not the line in which the time passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from perfkit._location import Location
from perfkit.measures.host.callers import Function, sampled_callers
from perfkit.measures.results.host import HostLine
from perfkit.rules._settings import first_call
from perfkit.run.records import RANK_SLICE, LineRow, Lines, Phase, Rank, TracedLine

#: What a program writes to set up the Trainer of a library: the first that it has is the line to edit.
_HUGGING_FACE = ("TrainingArguments", "HfArgumentParser", "Trainer")
_SET_UP = {
    "transformers": _HUGGING_FACE,
    "trl": _HUGGING_FACE,
    "accelerate": _HUGGING_FACE,
    "lightning": ("Trainer",),
    "lightning_fabric": ("Trainer",),
    "pytorch_lightning": ("Trainer",),
}


#: Rounds of a loop in a call of its function that are many (chosen: fewer are not what its time is from).
_MANY = 4
#: Callers that are climbed: a loop has few of its own functions above a line.
_DEEP = 50


def trainer_argument(rank: Rank | None, library: str, *arguments: str) -> Location | None:
    """The first of these arguments that the program gives to the Trainer of a library, else the line that makes it.

    None where the library has no Trainer, or the user's source shows no such line.
    """
    names = _SET_UP.get(library)
    return first_call(rank, *arguments, *names) if rank is not None and names is not None else None


def is_made_by_trainer(made_at: Location | None) -> bool:
    """Whether a library that has a Trainer makes the object."""
    return made_at is not None and made_at.owner in _SET_UP


def to_edit(rank: Rank | None, made_at: Location | None, *arguments: str) -> Location | None:
    """The line that makes an object; where a Trainer makes it, the first of these arguments that it is given."""
    if made_at is None or made_at.owner == "user":
        return made_at
    return trainer_argument(rank, made_at.owner, *arguments) or msgspec.structs.replace(made_at, owner="user")


def interval_of(lines: Lines | None, *places: Location | None) -> Location | None:
    """The line that sets how often the first of these lines runs that has one: the N of ``if step % N == 0``."""
    known = {(one.file, one.line): one.set_at for one in (lines.intervals if lines is not None else ())}
    found = (known.get((one.file, one.line)) for one in places if one is not None and one.line is not None)
    return next((one for one in found if one is not None), None)


def library_called(place: Location, lines: Lines | None) -> str:
    """The library with a Trainer that a line calls; empty where it calls none."""
    rows = [row for row in lines.rows if _same_line(row, place)] if lines is not None else []
    # torch.no_grad() and the like, as decorators, call the library's function.
    called = (within.removeprefix("torch.utils._contextlib > ").split(".")[0] for row in rows for within in row.within)
    called = (name.split(" > ")[0] for name in called)
    return next((library for library in called if library in _SET_UP), "")


def call_of(row: LineRow | HostLine | None, lines: Lines | None, *, once: bool = False) -> Location | None:
    """The line that calls a line's function within the step: the call to do less often, once, or elsewhere.

    Of a fetch it is the outermost one, in the dataset's or the collate function itself: what is called there for each
    sample can be done once. None where the line is in a method (other than of a fetch that can be done ``once``), or
    where a framework or a module calls its function.
    """
    if row is None or row.called_from is None or row.function.endswith("forward"):
        return None
    caller = row.called_from
    if _is_training_loop(caller, lines):
        return None  # the line of the loop itself resumes a generator
    if is_method(row) and not (once and row.phase == "data"):
        return None
    if row.phase != "data":
        return caller if phases_of(caller, lines) else None
    worker = row.worker if isinstance(row, LineRow) else None
    callers = _callers(lines, worker) if lines is not None else {}
    found = None
    for _ in range(_DEEP):
        phases = phases_of(caller, lines)
        # The loop's own line fetches the batch: it calls the loader, which calls the function.
        if phases != {"data"} and (worker is None or phases):
            break
        found, outer = caller, callers.get((caller.file, caller.function))
        if outer is None:
            break
        caller = outer
    return found


def is_method(row: Location) -> bool:
    """Whether a line is in a method: a class can keep what it computes, a function's work is its caller's to move.

    Of ten programs with a slow line in a method all ten authors named the method as what to change; of seven with one
    in a function six named the call. In a fetch four of four named a method below ``__getitem__``.
    """
    return bool(_class_of(row.function))


def how_often(row: LineRow | HostLine | None, lines: Lines | None) -> Location | None:
    """The line that sets N, where a line runs in every N-th step; else the call of its function (`call_of`)."""
    return interval_of(lines, *_below_the_loop(row, lines)) or call_of(row, lines)


def _below_the_loop(row: LineRow | HostLine | None, lines: Lines | None) -> Iterator[Location]:
    """A line and those that lead to it, up to the one in a function that trains."""
    if row is None or lines is None:
        return
    yield row.at
    callers, training = _callers(lines), training_functions(lines)
    caller = row.called_from
    for _ in range(_DEEP):
        if caller is None:
            return
        yield caller
        name = caller.file, caller.function
        caller = callers.get(name) if name not in training else None


def row_at(place: Location | None, lines: Lines | None) -> LineRow | None:
    """The samples of a line of the training process; None where it has none."""
    rows = lines.rows if lines is not None and place is not None else ()
    return next((row for row in rows if row.worker is None and place is not None and _same_line(row, place)), None)


def call_in_loop(row: LineRow | HostLine | None, lines: Lines | None) -> Location | None:
    """The line of the training loop's functions below which a line runs: what it calls can be done there less often.

    None for a line of those functions themselves, in a model's forward, or whose callers are not known. Where the
    Trainer of a library calls back, its line is all of the training: the place is below it. So it is where a loop calls
    a method of one object after the other (callbacks, metrics): what is above that is shared by all of them.
    """
    if row is None or lines is None:
        return None
    callers = _callers(lines)
    training = _loop_functions(lines, callers)
    at: Location | None = row.at
    caller, below = row.called_from, row.at
    for _ in range(_DEEP):
        if at is None or (at.function or "").endswith("forward"):
            return None
        if (at.file, at.function) in training:
            at = below if library_called(at, lines) else at
            # The line of the loop itself resumes a generator: what is in there is the place.
            return at if at != row.at and not _is_training_loop(at, lines) else None
        if at != row.at and _calls_each_object(at, below, lines):
            return at
        below = at
        at, caller = caller, callers.get((caller.file, caller.function)) if caller is not None else None
    return None


def is_in_own_loop(row: LineRow | HostLine, lines: Lines | None) -> bool:
    """Whether a line is in a loop of its function, which is none of those that train.

    The step that was traced by line may not have entered the loop: then the line follows its statement.
    """
    if lines is None or (row.file, row.function) in training_functions(lines):
        return False
    before = (one for one in lines.traced if (one.file, one.function) == (row.file, row.function))
    nearest = max((one for one in before if one.line <= row.line), key=lambda one: one.line, default=None)
    return nearest is not None and nearest.loop_line is not None


def repeats_in_call(row: LineRow | HostLine, lines: Lines | None) -> bool:
    """Whether a line runs many times in each call of its function, in a loop of that: the loop is what to edit."""
    own = [one for one in _traced(lines) if (one.file, one.function) == (row.file, row.function)]
    runs = max((one.runs for one in own if one.line == row.line and one.loop_line is not None), default=0)
    calls = min((one.runs for one in own if one.loop_line is None), default=runs)
    return runs >= _MANY * max(1, calls)


def training_functions(lines: Lines) -> set[tuple[str, str | None]]:
    """The functions that call modules, a backward or an optimizer in the step."""
    sampled: set[tuple[str, str | None]] = {(one.file, one.function) for one in lines.rows if _trains(one)}
    return sampled | {(one.file, one.function) for one in lines.traced if _trains(one)}


def _loop_functions(lines: Lines, callers: dict[Function, Location]) -> set[Function]:
    """The functions that train, and those that call them, one of which has the loop."""
    functions: set[Function] = set(training_functions(lines))
    for name in list(functions):
        for _ in range(_DEEP):
            outer = callers.get(name)
            if outer is None or outer.function == "<module>":
                break
            name = (outer.file, outer.function)
            functions.add(name)
    return functions


def _calls_each_object(at: Location, called: Location, lines: Lines) -> bool:
    """Whether a line calls a method of another class in a loop."""
    owner = _class_of(called.function)
    in_loop = any(one.loop_line is not None and _same_line(one, at) for one in lines.traced)
    return bool(owner) and in_loop and owner != _class_of(at.function)


def _class_of(function: str | None) -> str:
    """``Log`` of ``Log.write``; empty for a function of a module or of another function."""
    owner = (function or "").rpartition(".")[0]
    return "" if owner.endswith("<locals>") else owner


def _callers(lines: Lines, worker: str | None = None) -> dict[Function, Location]:
    """The line from which each function was called, most often where that was sampled; with ``worker`` in workers."""
    found: dict[Function, Location] = {}
    for one in lines.traced:
        # A comprehension is called by its own line.
        others = (by for by in one.callers if (by.file, by.function) != (one.file, one.function))
        if (outer := next(others, None)) is not None:
            found[one.file, one.function] = outer
    return found | sampled_callers(lines, worker)


def loops_over_batch(line: Location, lines: Lines | None) -> bool:
    """Whether a line is in a loop of a function that is called once in the step: that loop takes samples one by one.

    Of a function that is called for each sample, the loop over samples is where it is called.
    """
    # A comprehension in the line is a function of its own, which the line itself calls.
    own = [
        one for one in _traced(lines) if _same_line(one, line) and not any(_same_line(one, by) for by in one.callers)
    ]
    traced = own[0] if own else None
    if traced is None or traced.loop_line is None:
        return False
    calls = [one.runs for one in _traced(lines) if any(_same_line(one, caller) for caller in traced.callers)]
    return calls == [1] and traced.runs > 1


def phases_of(place: Location, lines: Lines | None) -> set[Phase]:
    """The phases in which a line's function ran in the step traced by line."""
    return {one.phase for one in _traced(lines) if (one.file, one.function) == (place.file, place.function)}


def busiest_line(lines: Lines | None, *phases: Phase) -> Location | None:
    """The user's line in which most of these phases passes; None where no line was sampled in them."""
    rows = [row for row in lines.rows if row.phase in phases and row.owner == "user"] if lines is not None else []
    busiest = max(rows, key=lambda row: row.samples, default=None)
    return busiest.at if busiest is not None else None


def data_of_a_rank(rank: Rank | None, lines: Lines | None, loader_made_at: Location | None) -> Location | None:
    """The line that decides what a rank trains on: its part of the data, its sampler, its loader, or its input.

    The input is made by the longest line of the training function that runs before the model; None where it has none.
    """
    made = first_call(rank, RANK_SLICE, "DistributedSampler", "batch_sampler") if rank is not None else None
    if made is not None or loader_made_at is not None or lines is None:
        return made or loader_made_at
    training = {(row.file, row.function) for row in lines.rows if row.owner == "user" and _trains(row)}
    inputs = (
        one
        for one in lines.traced
        if one.before_model and not one.modules and one.line != one.loop_line and (one.file, one.function) in training
    )
    longest = max(inputs, key=lambda one: one.host_ns, default=None)
    return longest.at if longest is not None else None


def helper_call(place: Location, lines: Lines | None) -> Location | None:
    """The first line that calls a line's function in the step, where several lines do: a helper is not to be edited."""
    callers = next((one.callers for one in _traced(lines) if _same_line(one, place)), ())
    return callers[0] if len(callers) > 1 else None


def _traced(lines: Lines | None) -> Sequence[TracedLine]:
    return lines.traced if lines is not None else ()


def _trains(one: LineRow | TracedLine) -> bool:
    return (isinstance(one, TracedLine) and bool(one.modules)) or one.phase in ("backward", "optimizer")


def _is_training_loop(place: Location, lines: Lines | None) -> bool:
    """Whether a line is the statement of a loop that trains."""
    return any(one.loop_line == place.line and one.file == place.file and _trains(one) for one in _traced(lines))


def _same_line(one: Location, place: Location) -> bool:
    return (one.file, one.line) == (place.file, place.line)
