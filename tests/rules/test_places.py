"""The line to edit beside the one in which the time passes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.host import HostLine
from perfkit.rules._places import (
    busiest_line,
    call_in_loop,
    call_of,
    helper_call,
    how_often,
    library_called,
    loops_over_batch,
    to_edit,
    trainer_argument,
)
from perfkit.rules.data import input_bound
from perfkit.rules.ops import float64_in_step, unfused_optimizer
from perfkit.rules.python import checkpoint_in_step, validation_too_often
from perfkit.run.records import LineRow, Lines, OptimizerFacts, Phase, Rank, StepInterval, TracedLine
from tests.rules.test_float64_in_step import wide
from tests.rules.test_unfused_optimizer import update

MS = 1_000_000
LOADER = Location(file="train.py", line=7, function="DataLoader(...)")
BY_TRAINER = Location(file="train.py", line=9, function="Trainer.train(...)", owner="transformers")
ARGUMENTS = Location(file="train.py", line=3, function="TrainingArguments(...)")
SAVE_STEPS = Location(file="train.py", line=4, function="save_steps=")
CALL = Location(file="train.py", line=40, function="main")


def row(function: str = "Reviews.__getitem__", phase: Phase = "data", **fields: Any) -> LineRow:
    given = {"file": "train.py", "line": 31, "samples": 60, "host_ns": 60 * MS, **fields}
    return LineRow(function=function, phase=phase, **given)


def traced(line: int, function: str, phase: Phase = "forward", **fields: Any) -> TracedLine:
    return TracedLine(file="train.py", line=line, function=function, phase=phase, runs=1, host_ns=MS, **fields)


def lines(*rows: LineRow, steps: tuple[TracedLine, ...] = ()) -> Lines:
    return Lines(period_ns=MS, steps=40, rows=rows, traced=steps)


def made_at(rank: Rank, place: Location | None, **settings: Any) -> Rank:
    loader = msgspec.structs.replace(rank.loaders[0], created_at=place, **settings)
    return msgspec.structs.replace(rank, loaders=(loader,))


def test_what_the_user_makes_is_edited_there_and_what_a_trainer_makes_by_its_argument(build: Any) -> None:
    rank = build.rank(calls={"TrainingArguments": (ARGUMENTS,), "save_steps": (SAVE_STEPS,)})

    assert to_edit(rank, LOADER, "optim") == LOADER
    assert to_edit(rank, BY_TRAINER, "optim") == ARGUMENTS
    assert to_edit(rank, BY_TRAINER, "save_steps") == SAVE_STEPS
    assert to_edit(build.rank(), BY_TRAINER) == msgspec.structs.replace(BY_TRAINER, owner="user")
    assert trainer_argument(rank, "numpy", "save_steps") is None


def test_a_function_is_hoisted_at_the_line_of_the_step_that_calls_it() -> None:
    called = row("prepare", "forward", called_from=CALL)

    assert call_of(called, lines(steps=(traced(39, "main"),))) == CALL
    # Nothing of main runs in the step: it called the Trainer long before.
    assert call_of(called, lines(steps=(traced(31, "prepare"),))) is None
    assert call_of(row("Net.forward", "forward", called_from=CALL), lines(steps=(traced(39, "main"),))) is None


def test_the_loop_that_fetches_a_batch_is_no_call_to_hoist() -> None:
    fetch = row(called_from=CALL)

    assert call_of(fetch, lines(steps=(traced(40, "main", "data"), traced(41, "main"))), once=True) is None
    assert call_of(fetch, lines(steps=(traced(40, "main", "data"),)), once=True) == CALL
    assert call_of(msgspec.structs.replace(fetch, worker="Reviews"), lines(), once=True) == CALL


def test_what_a_fetch_calls_through_several_functions_is_hoisted_at_the_first_of_them() -> None:
    encodes = Location(file="train.py", line=49, function="Reviews.__getitem__")
    each_word = Location(file="train.py", line=33, function="Bpe.encode")
    hot = row("Bpe.word", called_from=each_word)
    calls = (row("Bpe.encode", line=33, called_from=encodes), row(line=50, called_from=CALL))
    steps = (
        traced(31, "Bpe.word", "data", callers=(each_word,)),
        traced(33, "Bpe.encode", "data", callers=(each_word, encodes)),
        traced(49, "Reviews.__getitem__", "data", callers=(CALL,)),
        traced(41, "main"),
    )

    assert call_of(hot, lines(steps=steps), once=True) == encodes
    assert call_of(hot, lines(*calls, steps=steps), once=True) == encodes
    # What is to be done for each sample anew is changed in the method.
    assert call_of(hot, lines(*calls, steps=steps)) is None
    in_worker = [msgspec.structs.replace(one, worker="Reviews") for one in (hot, *calls)]
    assert call_of(in_worker[0], lines(*in_worker, steps=(traced(41, "main"),)), once=True) == encodes


def test_the_loop_that_resumes_a_generator_is_no_call_to_hoist() -> None:
    called = row("batches", "forward", called_from=CALL)
    loop = (traced(40, "main"), traced(43, "main", "backward", loop_line=40))

    assert call_of(called, lines(steps=loop)) is None


def test_a_helper_that_several_lines_call_is_edited_where_it_is_called() -> None:
    other = msgspec.structs.replace(CALL, line=41)
    update = Location(file="train.py", line=31, function="Meter.update")

    assert helper_call(update, lines(steps=(traced(31, "Meter.update", callers=(CALL, other)),))) == CALL
    assert helper_call(update, lines(steps=(traced(31, "Meter.update", callers=(CALL,)),))) is None


def place(line: int, function: str) -> Location:
    return Location(file="train.py", line=line, function=function)


@pytest.mark.parametrize(("function", "called"), [("RunLog.write", None), ("write", place(23, "Loop.fit"))])
def test_a_method_is_changed_itself_and_a_function_where_it_is_called(function: str, called: Location | None) -> None:
    steps = (traced(22, "Loop.fit", "optimizer"), traced(23, "Loop.fit"))
    hot = row(function, "other", called_from=place(23, "Loop.fit"))

    assert call_of(hot, lines(steps=steps)) == called


def test_how_often_a_line_runs_may_be_set_anywhere_between_it_and_the_loop_that_trains() -> None:
    write, after, fit, every = (
        place(14, "RunLog.write"), place(26, "Loop.after_step"), place(23, "Loop.fit"), place(3, "<module>")
    )  # fmt: skip
    steps = (
        traced(14, "RunLog.write", callers=(after,)),
        traced(26, "Loop.after_step", callers=(fit,)),
        traced(22, "Loop.fit", "optimizer", callers=(place(50, "main"),)),
    )
    hot = row("RunLog._flush", "other", called_from=write)

    def found(at: Location) -> Location | None:
        interval = StepInterval(file=at.file, line=at.line or 0, function=at.function or "", owner="user", set_at=every)
        return how_often(hot, msgspec.structs.replace(lines(steps=steps), intervals=(interval,)))

    assert found(after) == found(fit) == every
    assert found(place(50, "main")) is None  # once per epoch


def test_what_a_loop_over_callbacks_calls_is_changed_there_and_not_where_all_of_them_are_called() -> None:
    each, all_of_them = place(22, "Trainer.dispatch"), place(18, "Trainer.fit")
    sample = place(11, "Distance.on_step_end")
    hot = row("Distance.between", "other", called_from=sample)

    def steps(loop_line: int | None) -> tuple[TracedLine, ...]:
        return (
            traced(31, "Distance.between", callers=(sample,)),
            traced(11, "Distance.on_step_end", loop_line=10, callers=(each,)),
            traced(22, "Trainer.dispatch", loop_line=loop_line, callers=(all_of_them,)),
            traced(17, "Trainer.fit", "optimizer"),
        )

    assert call_in_loop(hot, lines(steps=steps(21))) == each
    assert call_in_loop(hot, lines(steps=steps(None))) == all_of_them


def test_the_line_that_starts_a_trainer_is_no_call_in_the_loop() -> None:
    trains = place(52, "<module>")
    starts = row("<module>", "optimizer", line=52, within={"transformers.trainer > torch": 9})
    hook = row("Words.on_step_end", "other", called_from=trains)
    helper = row("count", "other", line=12, called_from=place(31, "Words.on_step_end"))

    assert call_in_loop(hook, lines(hook, starts)) is None
    assert call_in_loop(helper, lines(hook, helper, starts)) == place(31, "Words.on_step_end")


def test_a_line_that_calls_a_trainer_is_known_by_its_samples() -> None:
    calls = row("main", "forward", line=40, within={"": 3, "lightning.pytorch > torch": 5})

    assert library_called(CALL, lines(calls)) == "lightning"
    assert library_called(CALL, lines(row("main", "forward", line=40, within={"torch": 5}))) == ""


@pytest.mark.parametrize(
    ("settings", "cpus", "expected"),
    [
        ({"num_workers": 0}, 8, LOADER),  # workers hide most of the wait
        ({"num_workers": 0}, 1, None),  # only less work helps: the line itself
        ({"num_workers": 2}, 8, LOADER),
    ],
)
def test_a_wait_for_data_is_changed_where_its_loader_is_made(
    settings: dict[str, Any], cpus: int, expected: Location | None, build: Any
) -> None:
    rank = made_at(build.rank(cpus=cpus), LOADER, **settings)

    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), rank, lines(row()))

    assert (finding.spent.line, finding.change) == (31, expected)


def test_a_loop_that_only_waits_is_changed_where_its_loader_is_made(build: Any) -> None:
    rank = made_at(build.rank(cpus=1), LOADER)
    waits = lines(row("main", line=40), steps=(traced(40, "main", "data"), traced(42, "main", "backward")))

    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), rank, waits)

    assert (finding.spent.line, finding.change) == (40, LOADER)


def test_a_wait_for_data_without_a_line_names_the_loader(build: Any) -> None:
    rank = made_at(build.rank(cpus=1), LOADER)

    [finding] = build.findings(input_bound, build.step(100, data=60, forward=40), rank)

    assert (finding.spent, finding.change) == (None, LOADER)


def test_an_optimizer_is_changed_where_it_is_made(build: Any) -> None:
    facts = OptimizerFacts(kind="Adam", tensors=160, elements=1, dtypes=("float32",), created_at=LOADER)
    patterns = build.patterns(step_ms=100, updates=(update(),))

    [finding] = build.findings(unfused_optimizer, build.step(100), patterns, build.rank(optimizers=(facts,)))

    assert (finding.spent.line, finding.change) == (37, LOADER)


def test_a_trainer_saves_and_validates_as_often_as_its_arguments_say(build: Any) -> None:
    rank = build.rank(calls={"TrainingArguments": (ARGUMENTS,), "save_steps": (SAVE_STEPS,)})
    fit = row("<module>", "validation", line=40, within={"transformers > torch": 30})
    step, every = build.step(12, backward=4), build.mean_step(28, forward=4, backward=4, validation=10)
    work = build.work("checkpoint", 8, line=40, function="<module>", within="transformers > checkpoint")

    [saves] = build.findings(checkpoint_in_step, step, every, work, rank, lines(fit))
    [validates] = build.findings(validation_too_often, step, every, rank, lines(fit))

    assert (saves.spent.line, saves.change) == (40, SAVE_STEPS)
    assert (validates.spent.line, validates.change) == (40, ARGUMENTS)


def test_float64_is_changed_where_the_program_makes_it(build: Any) -> None:
    patterns = build.patterns(step_ms=100, dtypes=(wide(40, 30 * MS),))
    one, two = (Location(file="train.py", line=line, function="from_numpy(...)") for line in (5, 6))
    found = [
        build.findings(float64_in_step, build.step(100), patterns, build.rank(calls=calls))[0].change
        for calls in ({"from_numpy": (one,)}, {"from_numpy": (one, two)}, {"from_numpy": (one,), "double": (two,)})
    ]

    assert found == [one, one, two]


def test_a_host_line_is_hoisted_as_a_sampled_one_is() -> None:
    work = HostLine(file="a.py", line=1, function="decode", phase="forward", samples=9, host_ns=MS, called_from=CALL)

    assert call_of(work, lines(steps=(traced(39, "main"),))) == CALL


def test_the_busiest_line_is_the_users_and_of_the_asked_phases() -> None:
    rows = (
        row("main", "backward", line=5, samples=60),
        row("Net.forward", "forward", line=6, samples=70),
        row("main", "optimizer", line=7, samples=99),
        row("engine", "backward", line=8, samples=99, owner="torch"),
    )

    busiest = busiest_line(lines(*rows), "forward", "backward")

    assert busiest is not None
    assert busiest.line == 6
    assert busiest_line(None, "forward") is None


@pytest.mark.parametrize(("calls", "expected"), [(1, True), (32, False)])
def test_the_loop_over_samples_is_in_a_function_called_once_and_else_where_it_is_called(
    calls: int, expected: bool
) -> None:
    inside = msgspec.structs.replace(traced(31, "augment", callers=(CALL,)), loop_line=30, runs=32)
    call = msgspec.structs.replace(traced(40, "main"), runs=calls)

    assert loops_over_batch(inside, lines(steps=(call, inside))) is expected
    # A comprehension in the line is a function that the line calls.
    comprehension = msgspec.structs.replace(inside, runs=320, callers=(inside.at,))
    assert loops_over_batch(inside, lines(steps=(comprehension, call, inside))) is expected
