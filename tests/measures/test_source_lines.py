"""The user's lines, from traces with known answers: what each line called, and which made a backward node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from perfkit.measures.host._python_frames import with_frames
from perfkit.measures.host.source_lines import measure_source_lines
from perfkit.measures.ops._typical_times import op_calls
from perfkit.measures.ops.patterns import measure_patterns
from perfkit.measures.results.host import SourceLine, SourceLines
from perfkit.run.records import LineTimes, TracedLine, UserCode
from perfkit.trace.columns import Kind, Trace

STEP = UserCode(file="/u/train.py", frame_file="train.py", name="step", function="Trainer.step", line=10)
LOSS = UserCode(file="/u/model.py", frame_file="model.py", name="loss", function="loss", line=3)
FILES = {"train.py": "/u/train.py", "model.py": "/u/model.py", "hooks.py": "/u/hooks.py"}


def followed(*entries: tuple[int, ...], thread: int = 1) -> LineTimes:
    """(time, which code, line, how deep) of each line that the thread came to; step() is called by nobody."""
    whole = [entry if len(entry) == 4 else (*entry, entry[1] + 1) for entry in entries]
    time_ns, code, line, depth = (np.array(column, np.int64) for column in zip(*whole, strict=True))
    return LineTimes(thread, (STEP, LOSS), FILES, time_ns, code, line, depth, complete=True)


def lines_of(found: SourceLines | None) -> dict[tuple[str, int | None], SourceLine]:
    assert found is not None
    return {(row.function, row.line): row for row in found.lines}


def a_step(build: Any) -> Any:
    """Line 11 calls loss() (two ops on lines 4 and 5), line 12 an op of its own; 100 us in all."""
    build.step(7, 0, 100_000)
    build.frame("train.py(10): step", 1_000, 99_000)
    build.frame("model.py(3): loss", 10_000, 50_000)
    build.frame("torch/nn/functional.py(9): relu", 12_000, 29_000)
    build.op("aten::relu", 15_000, 25_000)
    build.op("aten::clamp", 16_000, 20_000)
    build.op("aten::sum", 30_000, 40_000)
    build.op("aten::add", 60_000, 80_000)
    return followed((1_100, 0, 11), (10_100, 1, 4), (29_500, 1, 5), (50_100, 0, 11), (55_000, 0, 12))


def a_step_without_stacks(build: Any) -> tuple[Trace, LineTimes]:
    """The same as perfkit records it: without frames, and with the times of lines alone."""
    times = a_step(build)
    build.events = [event for event in build.events if "python_function" not in event]
    ended = followed((99_000, 0, 12, 0))
    times = times._replace(
        **{name: np.append(getattr(times, name), getattr(ended, name)) for name in ("time_ns", "code", "line", "depth")}
    )
    return with_frames(build.read(), times), times


def test_ops_belong_to_the_line_the_function_was_in_not_to_its_first(build: Any) -> None:
    times = a_step(build)
    found = measure_source_lines(build.read(), times)
    rows = lines_of(found)

    assert {key: row.ops for key, row in rows.items() if row.ops} == {
        ("loss", 4): 1,
        ("loss", 5): 1,
        ("Trainer.step", 12): 1,
    }
    assert rows["loss", 4].file == "/u/model.py"
    assert (rows["loss", 4].owner, rows["loss", 4].first_line) == ("user", 3)
    assert found is not None
    assert (found.steps, found.wall_ns, found.exact, found.function_only) == (1, 100_000, 1.0, 0.0)


def test_self_times_divide_the_frames_and_total_includes_what_was_called(build: Any) -> None:
    times = a_step(build)
    rows = lines_of(measure_source_lines(build.read(), times))

    own = {key: row.self_ns for key, row in rows.items()}
    assert sum(own.values()) == 98_000
    assert own["loss", 4] == 19_500
    assert own["loss", 5] == 20_500
    assert own["Trainer.step", 12] == 44_000
    assert rows["Trainer.step", 11].total_ns == own["Trainer.step", 11] + 40_000
    assert rows["loss", 4].total_ns == own["loss", 4]


def test_times_of_lines_alone_give_lines_ops_and_what_was_called(build: Any) -> None:
    rows = lines_of(found := measure_source_lines(*a_step_without_stacks(build)))

    assert found is not None
    assert (found.exact, found.function_only) == (1.0, 0.0)
    assert {(*key, row.ops, row.op_ns) for key, row in rows.items() if row.ops} == {
        ("loss", 4, 1, 10_000),
        ("loss", 5, 1, 10_000),
        ("Trainer.step", 12, 1, 20_000),
    }
    # From one line to the next; a call begins 1 ns before its first line.
    own = {key: row.self_ns for key, row in rows.items()}
    assert own == {
        ("Trainer.step", 11): 8_999 + 4_900 + 1,
        ("loss", 4): 19_401,
        ("loss", 5): 20_600,
        ("Trainer.step", 12): 44_000,
    }
    assert rows["Trainer.step", 11].total_ns == own["Trainer.step", 11] + 40_001
    assert rows["loss", 5].total_ns == own["loss", 5]


def test_a_recursive_call_known_by_line_times_only_is_counted_once_in_the_total(build: Any) -> None:
    build.step(7, 0, 100_000)
    entries = [(10_000, 1, 4, 1), (20_000, 1, 4, 2), (30_000, 1, 4, 3), (70_000, 1, 4, 2), (80_000, 1, 4, 1)]
    times = followed(*entries, (90_000, 1, 4, 0))
    trace = with_frames(build.read(), times)
    rows = lines_of(measure_source_lines(trace, times))

    assert trace.is_kind(Kind.PYTHON).sum() == 3
    assert rows["loss", 4].self_ns == rows["loss", 4].total_ns == 80_001


def test_without_stacks_a_row_of_another_thread_belongs_to_the_line_that_the_followed_one_was_in(build: Any) -> None:
    build.op("aten::mul", 5_000, 8_000, **{"Sequence number": 3})
    build.op("autograd::engine::evaluate_function: X", 70_000, 75_000, 2, **{"Sequence number": 3})
    build.launch(71_000, 80_000, 81_000, tid=2)
    build.op("aten::sin", 31_000, 32_000, 2)
    rows = lines_of(measure_source_lines(*a_step_without_stacks(build)))

    assert rows["loss", 5].ops == 2
    assert (rows["Trainer.step", 11].ops, rows["Trainer.step", 11].backward_ns) == (1, 5_000)
    assert rows["Trainer.step", 11].backward_launches == 1


def test_frames_from_line_times_leave_rows_and_their_arguments_as_they_were(build: Any) -> None:
    build.op("aten::mul", 5_000, 8_000, **{"Input Dims": [[2]]})
    _, times = a_step_without_stacks(build)
    before = build.read()
    trace = with_frames(before, times)
    rows = np.array([len(trace) - 1, 0])

    assert trace.names[: len(before.names)] == before.names
    assert (trace.start_ns[: len(before)] == before.start_ns).all()
    assert [len(args) for args in trace.args(rows.tolist())] == [0, 1]
    assert trace.fields(rows, ["Input Dims"])["Input Dims"].list() == [None, [[2]]]
    assert with_frames(trace, times) is trace
    assert len(with_frames(before, times._replace(thread=99))) == len(before)


def test_without_times_of_lines_a_function_is_named_and_no_line_is_made_up(build: Any) -> None:
    a_step(build)
    found = measure_source_lines(build.read())
    rows = lines_of(found)

    assert found is not None
    assert (found.exact, found.function_only) == (0.0, 1.0)
    assert {key: row.ops for key, row in rows.items()} == {("step", None): 1, ("loss", None): 2}
    assert rows["loss", None].first_line == 3


def traced(*lines: tuple[str, str, int]) -> Sequence[TracedLine]:
    return [
        TracedLine(file=file, line=line, function=function, owner="user", phase="forward", runs=1, host_ns=1)
        for file, function, line in lines
    ]


def test_the_only_line_that_ran_in_the_traced_step_is_the_line(build: Any) -> None:
    times = a_step(build)._replace(thread=99)  # another thread was followed than the one that worked
    lines = traced(("/u/model.py", "loss", 4), ("/u/train.py", "Trainer.step", 11), ("/u/train.py", "Trainer.step", 12))
    rows = lines_of(measure_source_lines(build.read(), times, lines))

    assert {key: row.ops for key, row in rows.items() if row.ops} == {("loss", 4): 2, ("Trainer.step", None): 1}


def test_a_node_of_the_backward_belongs_to_the_line_whose_op_made_it_whatever_thread_it_runs_on(build: Any) -> None:
    build.step(7, 0, 100_000)
    build.frame("train.py(10): step", 1_000, 99_000)
    build.op("aten::mul", 5_000, 8_000, **{"Sequence number": 3})
    build.op("aten::relu", 15_000, 18_000, **{"Sequence number": 4})
    for tid, seq, at in ((2, 4, 40_000), (2, 3, 60_000)):
        build.op("autograd::engine::evaluate_function: X", at, at + 10_000, tid, **{"Sequence number": seq})
        build.launch(at + 1_000, at + 20_000, at + 25_000, tid=tid)
    build.op("autograd::engine::evaluate_function: AccumulateGrad", 80_000, 85_000, 2)
    build.launch(81_000, 91_000, 92_000, tid=2)
    build.launch(6_000, 9_000, 11_000)
    times = followed((2_000, 0, 11), (14_000, 0, 12), (30_000, 0, 13))
    rows = lines_of(measure_source_lines(build.read(), times))

    assert {line: row.backward_ns for (_, line), row in rows.items()} == {11: 10_000, 12: 10_000, 13: 0, None: 0}
    assert {line: row.backward_launches for (_, line), row in rows.items()} == {11: 1, 12: 1, 13: 0, None: 0}
    assert (rows["Trainer.step", 11].launches, rows["Trainer.step", 11].device_ns) == (1, 2_000)
    assert rows["Trainer.step", 11].backward_device_ns == 5_000
    # What accumulates gradients was made by no op: it is the work of the line that waits in backward().
    assert rows["Trainer.step", 13].launches == 1


def test_a_backward_of_the_users_own_is_its_own_line(build: Any) -> None:
    build.step(7, 0, 100_000)
    build.frame("train.py(10): step", 1_000, 99_000)
    build.op("aten::mul", 5_000, 8_000, **{"Sequence number": 3})
    build.op("autograd::engine::evaluate_function: MineBackward", 40_000, 60_000, 2, **{"Sequence number": 3})
    build.frame("hooks.py(20): backward", 42_000, 58_000, 2)
    build.launch(45_000, 50_000, 52_000, tid=2)
    rows = lines_of(measure_source_lines(build.read(), followed((2_000, 0, 11))))

    assert rows["backward", None].file == "/u/hooks.py"
    assert rows["backward", None].launches == 1
    assert rows["Trainer.step", 11].backward_launches == 0
    assert rows["Trainer.step", 11].backward_ns == 20_000


def test_ops_in_a_function_that_an_op_calls_belong_to_that_function(build: Any) -> None:
    build.step(7, 0, 100_000)
    build.frame("train.py(10): step", 1_000, 99_000)
    build.op("Propagate", 20_000, 70_000)
    build.frame("model.py(3): loss", 25_000, 65_000)
    build.op("aten::matmul", 30_000, 60_000)
    build.op("aten::mm", 31_000, 59_000)

    rows = lines_of(measure_source_lines(build.read(), followed((1_100, 0, 11), (25_100, 1, 4), (65_100, 0, 11))))

    assert {key: (row.ops, row.op_ns) for key, row in rows.items()} == {
        ("Trainer.step", 11): (1, 10_000),
        ("loss", 4): (1, 30_000),
    }


def test_waits_for_the_device_are_counted_and_timed_by_line(build: Any) -> None:
    times = a_step(build)
    build.call("cudaStreamSynchronize", 61_000, 71_000)
    build.launch(31_000, 41_000, 42_000)
    rows = lines_of(measure_source_lines(build.read(), times))

    assert (rows["Trainer.step", 12].syncs, rows["Trainer.step", 12].blocked_ns) == (1, 10_000)
    assert (rows["loss", 5].launches, rows["loss", 5].device_ns, rows["loss", 5].syncs) == (1, 1_000, 0)


def test_without_device_work_backward_or_memory_these_are_not_measured(build: Any) -> None:
    times = a_step(build)
    row = lines_of(measure_source_lines(build.read(), times))["loss", 4]

    assert (row.launches, row.device_ns, row.syncs, row.backward_ns, row.allocations) == (None,) * 5


def test_allocations_are_counted_in_the_line_where_they_happened(build: Any) -> None:
    times = a_step(build)
    for at, size in ((17_000, 512), (18_000, -512), (18_500, 256)):
        build.events.append(
            f'{{"ph": "i", "name": "[memory]", "pid": 9, "tid": 1, "ts": {at / 1000:.3f},'
            f' "args": {{"Device Type": 0, "Device Id": -1, "Bytes": {size}}}}}'
        )
    rows = lines_of(measure_source_lines(build.read(), times))

    assert (rows["loss", 4].allocations, rows["loss", 4].allocated_bytes) == (2, 768)
    assert rows["loss", 5].allocations == 0


def test_a_function_that_calls_itself_is_counted_once_in_the_total(build: Any) -> None:
    build.step(7, 0, 100_000)
    for depth in range(3):
        build.frame("model.py(3): loss", 10_000 * (depth + 1), 90_000 - 10_000 * depth)
    entries = [(10_000 * (depth + 1) + 100, 1, 4) for depth in range(3)]
    rows = lines_of(measure_source_lines(build.read(), followed(*entries)))

    assert rows["loss", 4].self_ns == rows["loss", 4].total_ns == 80_000


def test_what_ran_in_a_library_alone_has_the_library_as_owner(build: Any) -> None:
    build.step(7, 0, 100_000)
    build.frame("threading.py(9): run", 1_000, 90_000, 3)
    build.frame("fetcher/pool.py(9): work", 2_000, 90_000, 3)
    build.frame("torch/_tensor.py(9): to", 3_000, 80_000, 3)
    build.op("aten::to", 5_000, 70_000, 3)
    rows = lines_of(measure_source_lines(build.read(), followed((1, 0, 11))))

    assert [(row.function, row.owner, row.line, row.ops) for row in rows.values()] == [("work", "fetcher", None, 1)]


@pytest.mark.parametrize("name", ["nothing", "ops"])
def test_a_trace_without_stacks_has_no_lines(build: Any, name: str) -> None:
    build.step(7, 0, 100_000)
    if name == "ops":
        build.op("aten::add", 1_000, 2_000)

    assert measure_source_lines(build.read()) is None


def test_times_of_frames_deeper_than_pythons_limit_add_up(build: Any) -> None:
    depth = 5_000
    build.step(7, 0, 10 * depth)
    for level in range(depth):
        build.frame("train.py(10): step" if level % 2 else "model.py(3): loss", level + 1, 9 * depth - level)
    rows = lines_of(measure_source_lines(build.read(), followed((1, 0, 11))))

    assert sum(row.self_ns for row in rows.values()) == 9 * depth - 1


def test_an_update_in_which_the_step_ended_is_called_by_the_line_that_began_it(build: Any) -> None:
    build.step(7, 0, 90_000)
    build.range("Optimizer.step#Adam.step", 60_000, 98_000)
    build.op("aten::add_", 61_000, 80_000)
    times = followed((1_100, 0, 12, 1), (55_000, 0, 13, 1), (90_000, 0, 13, 0))

    found = measure_patterns(op_calls(with_frames(build.read(), times), times))

    assert found is not None
    [update] = found.updates
    assert update.at is not None
    assert update.at.line == 13


def test_what_following_a_line_costs_is_no_time_of_its_own(build: Any) -> None:
    """Lines 12 and 13 are reached 100 times each, for 2 and 3 us: 1.9 of that is following."""
    build.step(7, 0, 1_000_000)
    build.frame("train.py(10): step", 1_000, 600_000)
    at, entries = 1_100, []
    for turn in range(100):
        entries += [(at, 0, 12), (at + 2_000 - 100 * (turn < 2), 0, 13)]
        at += 5_000 - 100 * (turn < 2)
    rows = lines_of(measure_source_lines(build.read(), followed(*entries, (at, 0, 14))))

    assert rows["Trainer.step", 12].following_ns == rows["Trainer.step", 13].following_ns == 190_000
    assert rows["Trainer.step", 12].python_ns == pytest.approx(10_000, abs=300)
    assert rows["Trainer.step", 13].python_ns == pytest.approx(110_000, abs=300)


def test_of_few_lines_the_shortest_is_not_what_following_costs(build: Any) -> None:
    times = a_step(build)
    rows = lines_of(measure_source_lines(build.read(), times))

    assert {row.following_ns for row in rows.values()} == {0}
