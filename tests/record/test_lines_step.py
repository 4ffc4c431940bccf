"""The step for lines after a window: what it records, when it is skipped, and that nothing stays on."""

from __future__ import annotations

import cProfile
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, Dataset

import perfkit
from perfkit.measures.gathering import measure
from perfkit.measures.results.host import SourceLines
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.record.windows import lines_due, lines_step, torch_profiler
from perfkit.run.arrays import read_line_times
from perfkit.run.reading import RankFolder, read_run
from perfkit.trace import Kind, read_trace

WINDOW = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)


def train(prof: perfkit.profile, steps: int = 12, error_at: int | None = None) -> float:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for number in prof.steps(range(steps)):
        hidden = model(torch.ones(4, 8))
        if number == error_at:
            raise ValueError("mine")
        loss = hidden.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def record(folder: Path, **options: Any) -> perfkit.profile:
    return perfkit.profile(folder, quiet=True, **{"schedule": WINDOW, **options})


def rank_of(folder: Path) -> RankFolder:
    return read_run(folder).ranks[0]


def line_of(text: str) -> int:
    source = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if line.strip() == text)


def test_after_a_window_comes_a_step_with_shapes_line_times_and_the_runs_step_number(tmp_path: Path) -> None:
    with record(tmp_path / "x") as prof:
        train(prof)

    (path,) = rank_of(tmp_path / "x").stacks
    trace = read_trace(path)
    assert path.name == "stacks-0.pt.trace.json.gz"
    assert trace.steps.number.tolist() == [6]
    assert any(trace.fields(np.flatnonzero(trace.is_kind(Kind.OP)), ["Input Dims"])["Input Dims"].values)
    assert read_line_times(path, []) is not None


def test_no_step_that_perfkit_records_by_itself_uses_torchs_python_tracer(tmp_path: Path) -> None:
    seen, traced = [], []
    with record(tmp_path / "x") as prof:
        for number in prof.steps(range(12)):
            torch.ones(2).sum()
            seen.append(sys.getprofile())
            traced += [number] if isinstance(getattr(sys.gettrace(), "__self__", None), lines_step.LineTimeline) else []

    rank = rank_of(tmp_path / "x")
    assert traced == [6]
    assert seen == [None] * 12
    assert not any(read_trace(path).is_kind(Kind.PYTHON).any() for path in (*rank.windows, *rank.stacks))


def test_ops_of_a_run_are_attributed_to_the_exact_lines_also_those_of_the_backward(tmp_path: Path) -> None:
    with record(tmp_path / "x") as prof:
        train(prof)

    found = measure(tmp_path / "x").get(SourceLines)
    assert found is not None
    lines = {row.line: row for row in found.lines if row.file == __file__}
    assert found.exact > 0.9
    assert lines[line_of("loss = hidden.pow(2).mean()")].ops == 2
    assert lines[line_of("hidden = model(torch.ones(4, 8))")].ops == 2
    assert (lines[line_of("loss = hidden.pow(2).mean()")].backward_ns or 0) > 0
    assert {row.function for row in lines.values() if row.ops} == {"train"}
    assert {row.launches for row in lines.values()} == {None}  # no device: not measured, not zero


def test_a_step_for_lines_comes_once_for_windows_that_show_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_due, "_SLOWER", math.inf)  # steps of some microseconds take twice as long at times
    with record(tmp_path / "x", schedule=perfkit.schedule(wait=3, warmup=1, active=1, repeat=3)) as prof:
        train(prof, 20)
    with record(tmp_path / "y", schedule=perfkit.schedule(wait=0, warmup=0, active=2, repeat=3)) as prof:
        train(prof, 14)

    assert [path.name[:8] for path in rank_of(tmp_path / "x").stacks] == ["stacks-0"]
    assert len(rank_of(tmp_path / "x").windows) == 3
    # Where windows follow each other at once, it comes after the last one.
    assert [path.name[:8] for path in rank_of(tmp_path / "y").stacks] == ["stacks-0"]
    assert len(rank_of(tmp_path / "y").windows) == 3


def test_a_step_for_lines_comes_again_where_something_else_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_due, "_SLOWER", math.inf)
    with record(tmp_path / "x", schedule=perfkit.schedule(wait=3, warmup=1, active=1, repeat=3)) as prof:
        train(prof, 10)
        train(prof, 10)

    assert [path.name[:8] for path in rank_of(tmp_path / "x").stacks] == ["stacks-0", "stacks-2"]


def test_the_steps_rows_are_left_out_of_every_timing(tmp_path: Path) -> None:
    counters.clear()  # where this process has compiled, operations are not counted
    with record(tmp_path / "x") as prof:
        train(prof)

    steps = rank_of(tmp_path / "x").steps
    # Warm-up, two active steps, the pause, those recorded for lines and traced by line, and two with ops counted.
    assert [row.step for row in steps if row.kind != "timed"] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_training_computes_the_same_with_it(tmp_path: Path) -> None:
    with record(tmp_path / "x", recorders=()) as prof:
        without = train(prof)
    with record(tmp_path / "y") as prof:
        assert train(prof) == without


@pytest.mark.parametrize("end", [6, 7])
def test_a_run_that_ends_before_or_inside_the_step_leaves_no_part_of_it_and_nothing_on(
    tmp_path: Path, end: int
) -> None:
    trace_before = sys.gettrace()
    with record(tmp_path / "x") as prof:
        train(prof, end)

    rank = rank_of(tmp_path / "x")
    assert len(rank.windows) == 1
    assert len(rank.stacks) == end - 6
    assert rank.rank is not None
    assert rank.rank.windows[0].complete
    assert list((tmp_path / "x").rglob(".part*")) == []
    assert sys.gettrace() is trace_before
    assert not torch_profiler.running()


def test_an_error_inside_the_step_is_the_trainings_own_and_nothing_stays_on(tmp_path: Path) -> None:
    trace_before = sys.gettrace()
    with pytest.raises(ValueError, match="mine"), record(tmp_path / "x") as prof:
        train(prof, error_at=5)

    assert not torch_profiler.running()
    assert sys.getprofile() is None
    assert sys.gettrace() is trace_before


def test_a_step_that_would_be_too_large_is_skipped_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_step, "MAX_BYTES", 1000)
    with record(tmp_path / "x") as prof:
        train(prof)

    rank = rank_of(tmp_path / "x")
    assert rank.stacks == ()
    assert rank.rank is not None
    assert any("no step for lines after window 0: its trace would have about" in note for note in rank.rank.notes)
    assert rank.rank.errors == ()


def test_another_python_profiler_stays_installed_and_lines_are_recorded(tmp_path: Path) -> None:
    other = cProfile.Profile()
    with record(tmp_path / "x") as prof:
        other.enable()
        train(prof)
        other.disable()

    calls = {entry.code: entry.callcount for entry in other.getstats()}
    assert calls[torch.nn.Linear.forward.__code__] == 12  # it saw every step
    found = measure(tmp_path / "x").get(SourceLines)
    assert found is not None
    assert found.exact > 0.9


@pytest.mark.parametrize("part", ["start", "export"])
def test_a_step_for_lines_that_fails_is_reported_once_and_windows_continue(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = getattr(torch_profiler, part)

    def broken(*arguments: Any, **more: Any) -> Any:
        for_lines = arguments[4].get("record_shapes") if part == "start" else "stacks" in arguments[1].name
        if for_lines:
            raise OSError("no space left")
        return real(*arguments, **more)

    monkeypatch.setattr(torch_profiler, part, broken)
    with record(tmp_path / "x", schedule=perfkit.schedule(wait=1, warmup=1, active=1, repeat=2)) as prof:
        train(prof)

    assert capsys.readouterr().err.count("no space left") == 1
    assert len(rank_of(tmp_path / "x").windows) == 2
    assert rank_of(tmp_path / "x").stacks == ()
    assert not torch_profiler.running()


def test_allocations_are_recorded_with_profile_memory(tmp_path: Path) -> None:
    with record(tmp_path / "x", profile_memory=True) as prof:
        train(prof)

    found = measure(tmp_path / "x").get(SourceLines)
    assert found is not None
    made = next(row for row in found.lines if row.line == line_of("hidden = model(torch.ones(4, 8))"))
    assert made.allocations is not None
    assert made.allocations >= 2
    assert (made.allocated_bytes or 0) >= 4 * 8 * 4 + 4 * 4


def test_a_compiled_model_is_compiled_once(tmp_path: Path) -> None:
    graphs = []

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = torch.compile(torch.nn.Linear(8, 1), backend=backend)
    with record(tmp_path / "x") as prof:
        for _ in prof.steps(range(12)):
            model(torch.ones(4, 8)).sum().backward()

    assert len(graphs) == 1
    assert len(rank_of(tmp_path / "x").stacks) == 1


class Watched(Dataset[bool]):
    """Returns whether the process that reads it has calls or lines recorded."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> bool:
        tracer = getattr(sys.gettrace(), "__self__", None)
        return sys.getprofile() is not None or isinstance(tracer, LineTracer)


def test_a_worker_that_starts_while_lines_are_recorded_is_not_recorded(tmp_path: Path) -> None:
    found = {}
    with record(tmp_path / "x", with_stack=True) as prof:
        for number in prof.steps(range(10)):
            torch.ones(2).sum()
            here = Watched()[0]
            (there,) = DataLoader(Watched(), num_workers=1, batch_size=None) if here else (False,)
            found[number] = (here, there)

    # The window, the step for lines after it, and those that are traced by line: two, as starting a worker takes long.
    assert [number for number, (here, _) in found.items() if here] == [3, 4, 6, 7, 8]
    assert not any(there for _, there in found.values())


def generated() -> Any:
    yield torch.ones(1)
    yield torch.ones(2)


def test_lines_are_followed_into_generators_and_back_to_the_caller(tmp_path: Path) -> None:
    followed = lines_step.LineTimeline()
    followed.start()
    for tensor in generated():
        tensor.sum()
    followed.stop()
    followed.write(tmp_path / "stacks-0.lines.npz")

    lost: list[str] = []
    times = read_line_times(tmp_path / "stacks-0.pt.trace.json.gz", lost)
    assert times is not None
    assert lost == []
    came = [(times.codes[code].function, line) for code, line in zip(times.code, times.line, strict=True)]
    here = test_lines_are_followed_into_generators_and_back_to_the_caller.__name__
    # When it goes on, the generator is in the line that it left.
    order = [("generated", line_of("yield torch.ones(1)")), (here, line_of("tensor.sum()"))]
    assert [entry for entry in came if entry in order] == order * 2
    assert (times.time_ns[1:] >= times.time_ns[:-1]).all()
    inner = {int(depth) for code, depth in zip(times.code, times.depth, strict=True) if times.codes[code].name != here}
    outer = {int(depth) for code, depth in zip(times.code, times.depth, strict=True) if times.codes[code].name == here}
    assert max(inner - {0}) == max(outer) + 1


def test_a_comprehension_of_many_items_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_step, "MAX_LINES", 300)
    found = []
    for items in (1_000, 0):
        followed = lines_step.LineTimeline()
        followed.start()
        sum([item * item for item in range(1_000)])
        for item in range(items):
            item += 1
        torch.ones(1)  # the last
        followed.stop()
        followed.write(tmp_path / "stacks-0.lines.npz")
        times = read_line_times(tmp_path / "stacks-0.pt.trace.json.gz", [])
        assert times is not None
        found.append((times.complete, line_of("torch.ones(1)  # the last") in times.line))

    # The loop of two lines has too many in fact.
    assert found == [(False, False), (True, True)]


def twice(number: int) -> int:
    return 2 * number


def test_a_function_called_in_a_comprehension_is_followed_and_left_again(tmp_path: Path) -> None:
    followed = lines_step.LineTimeline()
    followed.start()
    sum([twice(item) for item in range(3)])
    followed.stop()
    followed.write(tmp_path / "stacks-0.lines.npz")

    times = read_line_times(tmp_path / "stacks-0.pt.trace.json.gz", [])
    assert times is not None
    calling, called = line_of("sum([twice(item) for item in range(3)])"), line_of("return 2 * number")
    came = [line for line in times.line if line in (calling, called)]
    assert came[came.index(called) - 1 :][:6] == [calling, called] * 3
    assert came[-1] == calling


def test_frames_are_named_as_torch_names_them(tmp_path: Path) -> None:
    with torch.profiler.profile(with_stack=True) as profiler:
        torch.nn.functional.relu(torch.ones(2))
    profiler.export_chrome_trace(str(tmp_path / "t.json"))

    # Where torch has moved what the names are made with, lines would be known by whole paths only.
    names = {name.split("(")[0] for name in read_trace(tmp_path / "t.json").names}
    assert torch_profiler.frame_namer()(torch.nn.functional.__file__) in names
