"""Host work by kind: libraries, the place in the step, and whether a line calls ops; amounts add up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.host.host_work import measure_host_work
from perfkit.measures.results.host import HostWork, SourceLine, SourceLines
from perfkit.measures.results.steps import MeanStep
from perfkit.measures.results.work import OpShares
from perfkit.measures.steps.forward_start import without_preparation
from perfkit.run.records import Collected, GradientCalls, LineRow, Lines, ModuleCalls, Phases, Rank, TracedLine

MS = 1_000_000


def row(line: int, within: dict[str, int], function: str = "main", **fields: Any) -> LineRow:
    samples = sum(within.values())
    known = {"phase": "forward", "owner": "user", "samples": samples, "host_ns": samples * MS, **fields}
    return LineRow(file="train.py", line=line, function=function, within=within, **known)


def traced(line: int, before: bool, function: str = "main") -> TracedLine:
    return TracedLine(
        file="train.py",
        line=line,
        function=function,
        owner="user",
        phase="forward",
        runs=1,
        host_ns=100 * MS,
        before_model=before,
    )


def source(*lines: SourceLine) -> SourceLines:
    return SourceLines(source="stacks", steps=1, wall_ns=MS, exact=1.0, function_only=0.0, lines=lines)


def of_line(line: int | None, self_ns: int, op_ns: int, function: str = "main") -> SourceLine:
    return SourceLine(
        file="train.py",
        line=line,
        first_line=1,
        function=function,
        owner="user",
        self_ns=self_ns,
        op_ns=op_ns,
        ops=int(op_ns > 0),
    )


def measured(*rows: LineRow, steps: int = 10, **parts: Any) -> dict[str, HostWork]:
    """Host work by kind; samples are 10 ms apart, over 10 steps."""
    # A step that ran these functions, and no op in them.
    ran = (of_line(1, 0, 0, function=name) for name in {one.function for one in rows})
    known = parts.pop("source", source(*ran))
    run_steps = parts.pop("run_steps", steps)
    every = parts.pop("every", None)
    lines = Lines(**{"period_ns": 10 * MS, "steps": steps, "rows": rows, **parts})
    return {work.kind: work for work in measure_host_work(lines, known, run_steps, every)}


def mean_step(**phases_ms: float) -> MeanStep:
    """The mean of all steps as the clock has it."""
    phases = {name: round(ms * MS) for name, ms in phases_ms.items()}
    wall = sum(phases.values())
    return MeanStep(
        steps=10,
        wall_ns=wall,
        median_ns=wall,
        p10_ns=wall,
        p90_ns=wall,
        phases_ns=Phases(**phases),
        source="steps.jsonl",
    )


def test_samples_share_out_the_time_that_the_clock_gives_a_phase() -> None:
    pictures, other = row(1, {"PIL": 6}), row(2, {"torch.nn": 4})

    by_samples = measured(pictures, other)["preprocessing"]
    by_clock = measured(pictures, other, every=mean_step(forward=12))["preprocessing"]

    assert by_samples.host_ns == 6 * MS
    # Six samples of ten in 12 ms.
    assert by_clock.host_ns == round(7.2 * MS)
    assert by_clock.samples == by_samples.samples == 6


def test_a_clock_that_saw_other_steps_than_the_samples_changes_nothing() -> None:
    pictures, other = row(1, {"PIL": 6}), row(2, {"torch.nn": 4})

    assert measured(pictures, other, every=mean_step(forward=30))["preprocessing"].host_ns == 6 * MS


def test_lines_of_a_phase_take_no_longer_than_the_phase_however_many_samples_fell_on_them() -> None:
    pictures, other, waits = row(1, {"PIL": 6}), row(2, {"torch.nn": 4}), row(3, {"": 2}, waiting={"": 2})

    works = measured(pictures, other, waits, every=mean_step(forward=4))

    assert works["preprocessing"].host_ns == 3 * MS
    assert works["waiting"].host_ns == 1 * MS


def test_a_file_without_samples_or_period_is_no_error() -> None:
    pictures = row(1, {"PIL": 6})

    nothing = measured(msgspec.structs.replace(pictures, samples=0), every=mean_step(forward=12))["preprocessing"]
    no_period = measured(pictures, every=mean_step(forward=12), period_ns=0)["preprocessing"]

    assert nothing.samples == 6
    assert no_period.host_ns == 0


@pytest.mark.parametrize(
    ("within", "kind"),
    [
        ("torch.serialization > zipfile", "checkpoint"),
        ("transformers > checkpoint > shutil", "checkpoint"),
        ("torch.utils.tensorboard > numpy", "logging"),
        ("lightning > logging", "logging"),
        ("PIL", "preprocessing"),
        ("torchvision > PIL", "preprocessing"),
        ("json", "logging"),
        ("copy > torch._tensor > torch.storage", "checkpoint"),
        ("copy > torch.nn", "checkpoint"),
        ("copy", "python"),
        ("subprocess > selectors", "waiting"),
        ("random", "python"),
        ("numpy", "python"),
    ],
)
def test_libraries_determine_the_kind(within: str, kind: str) -> None:
    assert list(measured(row(5, {within: 20}))) == [kind]


@pytest.mark.parametrize(
    "within",
    [
        "torch.nn",
        "torch.utils.data > logging",
        "torch._tensor > torch.autograd",
        "lightning",
        "transformers > random",
        "torch.nn > torchvision.models > torch.nn",
        "torchvision.ops",
    ],
)
def test_what_passes_in_torch_or_a_framework_is_no_work_of_a_line(within: str) -> None:
    assert measured(row(5, {within: 20})) == {}


def often(line: int, python_ns: int) -> SourceLine:
    """A line of f() that runs so often that following it took 1 ms."""
    return msgspec.structs.replace(of_line(line, python_ns + MS, 0, "f"), following_ns=MS)


def short_run(*rows: LineRow, rank: Rank | None = None, **parts: Any) -> dict[str, HostWork]:
    """A step of 12 ms, half of whose forward of 10 is in ops: line 5 takes 3 ms of Python, line 6 none, line 7 ops."""
    lines = [often(5, 3 * MS), often(6, 0), of_line(7, 2 * MS, 2 * MS)]
    every = mean_step(forward=10, backward=2)
    shares = OpShares(shares={"forward": 0.5, "backward": 1.0})
    at = tuple(traced(line, False, "f") for line in (5, 6, 8))
    facts = {"source": source(*lines), "every": every, "traced": at, **parts}
    known = Lines(period_ns=10 * MS, steps=10, rows=rows, traced=facts.pop("traced"))
    works = measure_host_work(known, facts["source"], 10, facts["every"], shares=shares, rank=rank)
    return {work.kind: work for work in works}


def test_the_step_for_lines_says_how_long_lines_take_where_samples_are_too_few() -> None:
    work = short_run(row(5, {"": 2}, "f"), row(7, {"torch.nn": 8}))["python"]

    assert (work.followed, work.samples, work.total_samples) == (True, 0, 10)
    assert work.host_ns == 3 * MS
    assert [(line.line, line.host_ns, line.samples) for line in work.lines] == [(5, 3 * MS, 0)]


def test_samples_that_are_enough_stand_and_so_do_those_of_a_long_run() -> None:
    certain = short_run(row(5, {"": 6}, "f"), row(7, {"torch.nn": 4}))["python"]
    long = short_run(row(5, {"": 2}, "f"), row(7, {"torch.nn": 98}))["python"]

    assert (certain.followed, certain.samples) == (False, 6)
    assert (long.followed, long.samples) == (False, 2)


def test_followed_lines_take_no_longer_than_is_left_of_their_phase_outside_of_ops() -> None:
    work = short_run(row(7, {"torch.nn": 8}), source=source(often(5, 20 * MS), often(8, 5 * MS)))["python"]

    # Half of the 10 ms of the forward.
    assert work.host_ns == 5 * MS
    assert [(line.line, line.host_ns) for line in work.lines] == [(5, 4 * MS), (8, 1 * MS)]


def test_followed_lines_take_no_longer_than_the_thread_had_a_processor_outside_of_ops() -> None:
    def rank(thread_ms: float, waited: float = 0.0) -> Rank:
        times = {"thread_ns_per_step": round(thread_ms * MS), "core_wait_share": waited}
        return Rank(rank=0, launch_id="x", host="h", pid=1, start_ns=0, **times)

    # 7 ms are in ops. A sleep of 3 ms takes nothing of a processor.
    assert short_run(row(7, {"torch.nn": 8}), rank=rank(10))["python"].host_ns == 3 * MS
    assert short_run(row(7, {"torch.nn": 8}), rank=rank(8))["python"].host_ns == 1 * MS
    assert short_run(row(7, {"torch.nn": 8}), rank=rank(7)) == {}
    # Without a core for half of the time, so were the ops.
    assert short_run(row(7, {"torch.nn": 8}), rank=rank(5, 0.5))["python"].host_ns == 1.5 * MS


def test_a_followed_line_is_of_the_kind_of_its_few_samples_and_of_its_place_in_the_step() -> None:
    by_library = short_run(row(5, {"PIL": 1}, "f"), row(7, {"torch.nn": 8}))
    by_place = short_run(row(7, {"torch.nn": 8}), traced=(traced(5, True, "f"),))

    assert [*by_library] == [*by_place] == ["preprocessing"]


def test_a_long_line_without_samples_may_be_a_library_s() -> None:
    step = source(of_line(5, 3 * MS, 0, "f"))

    assert short_run(row(7, {"torch.nn": 8}), source=step) == {}
    assert short_run(row(5, {"torch.optim": 1}, "f"), row(7, {"torch.nn": 8}), source=step) == {}
    assert short_run(row(5, {"": 1}, "f"), row(7, {"torch.nn": 8}), source=step)["python"].host_ns == 3 * MS


def test_a_line_whose_phase_is_not_known_is_left_out() -> None:
    assert short_run(row(7, {"torch.nn": 8}), traced=()) == {}


def test_python_of_a_function_that_waits_or_logs_is_part_of_that() -> None:
    waits = short_run(row(9, {"": 6}, "f", waiting={"": 6}), row(7, {"torch.nn": 4}))
    logs = short_run(row(9, {"logging": 2}, "f"), row(7, {"torch.nn": 8}))

    assert [*waits] == ["waiting"]
    assert [*logs] == ["logging"]


def test_a_line_of_ops_is_none_however_much_following_it_took() -> None:
    of_ops = msgspec.structs.replace(of_line(5, 40 * MS, MS, "f"), following_ns=35 * MS)

    assert short_run(row(7, {"torch.nn": 8}), source=source(of_ops)) == {}


def test_a_line_that_is_in_other_phases_too_calls_a_framework() -> None:
    step = source(of_line(5, 3 * MS, 0, "f"))
    closure, update = row(5, {"": 2}, "f"), row(5, {"": 1}, "f", phase="optimizer")

    assert short_run(closure, row(7, {"torch.nn": 8}), source=step)["python"].followed
    assert not short_run(closure, update, row(7, {"torch.nn": 8}), source=step)["python"].followed


def test_python_of_a_line_that_calls_a_model_or_begins_the_next_step_is_not_the_users() -> None:
    samples, line = (row(5, {"": 2}, "f"), row(7, {"torch.nn": 8})), traced(5, False, "f")
    model = (ModuleCalls(module="Linear", calls=1, host_ns=MS),)

    assert short_run(*samples, traced=(line,))["python"].followed
    begins = msgspec.structs.replace(line, loop_line=5)
    body = msgspec.structs.replace(traced(6, False, "f"), loop_line=5)
    for called in ((msgspec.structs.replace(line, modules=model),), (begins, body)):
        assert not short_run(*samples, traced=called)["python"].followed
    # A comprehension, and a loop within the step.
    for own in ((begins,), (msgspec.structs.replace(begins, runs=9), body)):
        assert short_run(*samples, traced=own)["python"].followed


def test_a_followed_line_takes_no_longer_than_in_the_step_that_was_traced_by_line() -> None:
    line = msgspec.structs.replace(traced(5, False, "f"), runs=4, host_ns=2 * MS)

    work = short_run(row(5, {"": 2}, "f"), row(7, {"torch.nn": 8}), traced=(line,))["python"]

    assert work.host_ns == 2 * MS


def test_a_step_for_lines_that_was_not_followed_to_its_end_says_no_time() -> None:
    cut = msgspec.structs.replace(source(often(5, 3 * MS)), complete=False)

    assert short_run(row(7, {"torch.nn": 8}), source=cut) == {}


def test_lines_before_the_model_make_its_inputs() -> None:
    got = measured(row(5, {"": 20, "json": 5}), row(9, {"": 10}), traced=(traced(5, True), traced(9, False)))

    assert {kind: work.samples for kind, work in got.items()} == {"preprocessing": 25, "python": 10}


def test_a_line_that_calls_ops_is_left_to_the_rules_of_ops() -> None:
    known = source(of_line(5, 100, 40), of_line(9, 100, 4), of_line(None, 100, 40, "vague"))

    got = measured(row(5, {"": 20}), row(9, {"": 20}), row(12, {"": 20}, "vague"), source=known)

    assert [line.line for line in got["python"].lines] == [9]
    assert got["python"].samples == 19


def test_a_line_in_which_the_engine_computes_gradients_is_no_python() -> None:
    def kinds(engine_ns: int) -> list[str]:
        gradients = GradientCalls(calls=1, host_ns=engine_ns, is_grad=True)
        at = msgspec.structs.replace(traced(5, False), gradients=gradients, host_ns=MS)
        return list(measured(row(5, {"": 20}), traced=(at,), source=source(of_line(5, MS, 0))))

    assert kinds(MS // 2) == []
    assert kinds(MS // 100) == ["python"]


def test_a_line_with_a_small_op_over_a_function_of_plain_python_is_python_and_over_one_of_ops_is_not() -> None:
    def below(op_ns: int) -> list[int]:
        around = msgspec.structs.replace(of_line(5, 100, 40), total_ns=2_000)
        called = msgspec.structs.replace(
            traced(30, False), function="helper", callers=(Location(file="train.py", line=5, function="main"),)
        )
        got = measured(row(5, {"": 20}), traced=(called,), source=source(around, of_line(30, 1_900, op_ns, "helper")))
        return [line.line for work in got.values() for line in work.lines]

    assert below(0) == [5]
    assert below(1_500) == []


def test_a_line_unknown_because_the_step_was_not_followed_to_its_end_is_not_python() -> None:
    known = msgspec.structs.replace(source(of_line(9, 100, 4)), complete=False)

    got = measured(row(9, {"": 20}), row(12, {"": 20}), source=known)

    assert [line.line for line in got["python"].lines] == [9]


def test_without_stacks_a_lines_own_code_is_not_reported() -> None:
    assert list(measured(row(5, {"": 20}), row(7, {"PIL": 20}), source=None)) == ["preprocessing"]


def test_fetches_validation_workers_and_libraries_own_lines_are_left_out() -> None:
    rows = (
        row(5, {"": 20}, phase="data"),
        row(6, {"": 20}, phase="validation"),
        row(7, {"": 20}, worker="Photos"),
        row(8, {"": 20}, owner="lightning"),
    )

    assert measured(*rows) == {}


def test_garbage_collections_are_taken_out_of_their_line() -> None:
    # 1.5 s of collections in 100 steps, of which 10 were sampled: 15 samples.
    gone = Collected(file="train.py", line=5, function="main", owner="user", count=3, total_ns=1500 * MS)

    got = measured(row(5, {"": 20}), collected=(gone,), run_steps=100)

    assert got["python"].samples == 5


def test_the_lines_around_a_write_are_part_of_it() -> None:
    rows = (row(5, {"json": 5}, "write"), row(6, {"": 15}, "write"), row(9, {"": 10}))

    got = measured(*rows)

    assert {kind: work.samples for kind, work in got.items()} == {"logging": 20, "python": 10}


def test_amounts_are_per_step_and_lines_sum_to_the_work() -> None:
    got = measured(row(5, {"": 20}), row(6, {"": 10}), row(7, {"": 40}, "other"))["python"]

    assert got.host_ns == 70 * MS
    assert sum(line.host_ns for line in got.lines) == got.host_ns
    assert [line.line for line in got.lines] == [7, 5, 6]


def test_the_hottest_line_is_hot_in_samples_and_in_stacks() -> None:
    # Line 6 gives the interpreter lock away, and draws the samples of line 5.
    known = source(of_line(5, 5000, 0), of_line(6, 500, 0))

    got = measured(row(5, {"": 12}), row(6, {"": 14}), source=known)["python"]

    assert [line.line for line in got.lines] == [5, 6]


def test_without_samples_there_is_no_host_work() -> None:
    assert measure_host_work(None, source(), 10) == ()
    assert measured(row(5, {"": 20}), steps=0) == {}


def test_what_uses_no_processor_is_waiting_and_neither_python_nor_preprocessing() -> None:
    sleeping = row(5, {"": 20}, waiting={"": 18}, waits_for="time.sleep(0.01)")
    asking = row(7, {"urllib > http > socket": 10, "json": 4}, waiting={"urllib > http > socket": 10})

    got = measured(sleeping, asking, traced=(traced(5, True), traced(7, False)))

    assert {kind: work.samples for kind, work in got.items()} == {"waiting": 30, "logging": 4}
    assert [(line.line, line.waits_for) for line in got["waiting"].lines] == [(5, "time.sleep(0.01)"), (7, "")]


def test_an_event_loop_around_the_model_waits_for_requests_and_one_that_the_step_runs_is_waiting() -> None:
    idle = row(64, {"asyncio > selectors": 60, "": 12}, "run", waiting={"asyncio > selectors": 30})
    asked = msgspec.structs.replace(idle, line=65, function="reward")
    inside = row(37, {"torch.nn": 20}, "serve", called_from=idle.at)
    layers = row(23, {"torch.nn": 20}, "forward", called_from=inside.at)

    found = measured(idle, inside, layers, asked)

    assert {line.line for line in found["waiting"].lines} == {65}
    assert found["waiting"].samples == 60
    assert {line.line: line.samples for line in found["python"].lines} == {64: 12, 65: 12}


def test_a_function_in_no_sample_that_calls_the_model_is_known_from_the_step_traced_by_line() -> None:
    idle = row(64, {"asyncio > selectors": 60}, "run", waiting={"asyncio > selectors": 30})
    serves = Location(file="train.py", line=37, function="serve")
    layers = row(23, {"torch.nn": 20}, "forward", called_from=serves)
    seen = msgspec.structs.replace(traced(38, False), function="serve", callers=(idle.at,))
    again = msgspec.structs.replace(seen, line=37, callers=(serves,))  # what the loop resumed there

    works = measure_host_work(
        Lines(period_ns=10 * MS, steps=10, rows=(idle, layers), traced=(again, seen)), source(), 10, None
    )

    assert works == ()


def test_waiting_in_an_op_in_the_loader_in_a_log_and_in_a_checkpoint_is_theirs() -> None:
    rows = (
        row(5, {"": 20}, waiting={"": 20}),
        row(6, {"torch.utils.data": 20}, waiting={"torch.utils.data": 20}),
        row(7, {"wandb > socket": 20}, waiting={"wandb > socket": 20}),
        row(8, {"checkpoint > io": 20}, waiting={"checkpoint > io": 20}),
    )

    got = measured(*rows, source=source(of_line(5, 10 * MS, 9 * MS)))

    assert {kind: work.samples for kind, work in got.items()} == {"logging": 20, "checkpoint": 20}


def test_the_forward_begins_at_the_model_and_what_prepares_its_inputs_is_other() -> None:
    buffer, model, log = row(5, {"": 6}), row(7, {"": 4}), row(9, {"": 3}, phase="other")
    lines = Lines(period_ns=10 * MS, steps=10, rows=(buffer, model, log), traced=(traced(5, True), traced(7, False)))
    mean = mean_step(forward=10, backward=5, other=3)

    works = measure_host_work(lines, source(of_line(1, 0, 0)), 10, mean)
    step = without_preparation(mean, works, mean)

    assert step is not None
    assert (step.phases_ns.forward, step.phases_ns.other, step.phases_ns.backward) == (4 * MS, 9 * MS, 5 * MS)
    assert {line.line: (line.phase, line.before_model) for work in works for line in work.lines} == {
        5: ("other", True),
        7: ("forward", False),
        9: ("other", False),
    }


def test_a_fetch_before_the_model_stays_data_and_a_step_without_samples_is_as_the_clock_has_it() -> None:
    mean = mean_step(data=10, forward=10)

    assert without_preparation(mean, (), mean) == mean
    assert without_preparation(None, (), mean) is None


def test_a_line_that_is_seen_to_wait_in_nearly_half_of_its_samples_waits_in_all() -> None:
    sleeps = msgspec.structs.replace(row(5, {"": 100}), waiting={"": 45})
    fetches = msgspec.structs.replace(row(5, {"": 100}), waiting={"": 20})

    assert [work.samples for work in measured(sleeps).values()] == [100]
    assert "waiting" in measured(sleeps)
    assert measured(fetches)["waiting"].samples == 20


def test_nothing_is_known_of_a_function_that_the_step_for_lines_did_not_run() -> None:
    rare = row(64, {"": 30}, function="rank_tracks")

    assert "python" not in measured(rare, source=source(of_line(12, MS, 0)))
    assert "python" in measured(rare, source=source(of_line(60, MS, 0, function="rank_tracks")))


def test_what_a_tensor_looks_like_as_text_is_logging() -> None:
    assert "logging" in measured(row(12, {"torch._tensor > torch._tensor_str": 9}))
