"""A sample has the user's line, the libraries that it had called, and the caller of its function."""

from __future__ import annotations

import collections
import gc
import importlib
import itertools
import json
import logging
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch

from perfkit._code_owner import frame_of, library_of, stack_of
from perfkit.measures.host._libraries import kind_of
from perfkit.record.samplers import line_sampler
from perfkit.record.samplers.line_sampler import PERIOD_S, LineSampler
from perfkit.record.samplers.sampled_stacks import SampledLine, SampledStacks, find_line


def inside(library: str, call: Callable[[], Any]) -> SampledLine | None:
    """The sample taken while ``call`` is in a function of ``library``."""
    seen: list[SampledLine | None] = []

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and not seen and library_of(frame.f_code.co_filename) == library:
            seen.append(find_line(stack_of(frame)))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen[0] if seen else None


def test_a_sample_inside_a_library_names_it(tmp_path: Path) -> None:
    tensor = torch.zeros(2)

    saved = inside("torch.serialization", lambda: torch.save(tensor, tmp_path / "x.pt"))
    logged = inside("logging", lambda: logging.getLogger("quiet").debug("nothing"))
    written = inside("json", lambda: json.dumps({"a": 1}, indent=1))

    assert saved is not None
    assert logged is not None
    assert written is not None
    assert saved.within.startswith("torch.serialization")
    assert logged.within == "logging"
    assert written.within == "json"
    assert saved.owner == "user"


def test_a_lines_own_code_is_in_no_library_and_has_its_caller() -> None:
    def inner() -> SampledLine | None:
        found = [find_line(stack_of(sys._getframe())) for _ in range(1)]
        return found[0]

    where = inner()

    assert where is not None
    assert where.within == ""
    assert where.function.endswith("inner")
    assert where.called_from is not None
    assert where.called_from.function == "test_a_lines_own_code_is_in_no_library_and_has_its_caller"


def test_an_import_inside_a_step_is_no_lines_time_and_the_module_that_is_imported_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SampledLine | None] = []
    monkeypatch.setattr(json, "seen", lambda: seen.append(find_line(stack_of(sys._getframe(1)))), raising=False)
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "imported_in_a_step.py").write_text("import json\njson.seen()\n")
    (tmp_path / "own_loop.py").write_text("import json\njson.seen()\n")
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.syspath_prepend(str(tmp_path))

    importlib.import_module("imported_in_a_step")
    importlib.import_module("own_loop")  # a script that a launcher imports

    in_step, loop = seen
    assert in_step is None
    assert loop is not None
    assert (loop.file, loop.line) == (str(tmp_path / "own_loop.py"), 2)


def test_what_a_librarys_saving_function_calls_is_a_checkpoint() -> None:
    # A library is what lies in site-packages.
    library = "/anywhere/site-packages/trainerlib.py"
    source = "def save_checkpoint():\n    encode()\ndef encode():\n    json.dumps({}, indent=1)\n"
    namespace: dict[str, Any] = {"json": json}
    exec(compile(source, library, "exec"), namespace)

    where = inside("json", namespace["save_checkpoint"])

    assert where is not None
    assert where.within == "checkpoint > trainerlib > json"


def test_parts_of_torch_have_names_of_their_own_and_libraries_have_theirs() -> None:
    assert library_of(torch.serialization.__file__) == "torch.serialization"
    assert library_of(torch.utils.data.__file__) == "torch.utils.data"
    assert library_of(torch.__file__) == "torch"
    assert library_of(json.__file__) == "json"
    assert library_of("/anywhere/site-packages/PIL/Image.py") == "PIL"


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("tokenization_utils_base.py", "transformers.tokenization"),
        ("tokenization_utils_tokenizers.py", "transformers.tokenization"),
        ("tokenization_utils_fast.py", "transformers.tokenization"),
        ("tokenization_utils.py", "transformers.tokenization_python"),
        ("tokenization_python.py", "transformers.tokenization_python"),
        ("models/bert/tokenization_bert_legacy.py", "transformers.tokenization_python"),
        ("models/vit/image_processing_vit.py", "transformers.image"),
        ("trainer.py", "transformers"),
    ],
)
def test_what_prepares_inputs_is_a_part_of_transformers_of_its_own(file: str, part: str) -> None:
    assert library_of(f"/anywhere/site-packages/transformers/{file}") == part
    assert kind_of(part, before_model=False) == (None if part == "transformers" else "preprocessing")


def test_what_lightning_does_with_logged_values_is_logging() -> None:
    from lightning.pytorch.core import module
    from lightning.pytorch.trainer.connectors.logger_connector import result

    assert library_of(result.__file__) == "lightning.logging"
    assert kind_of("lightning > torch._dynamo > lightning.logging > copy", before_model=False) == "logging"
    assert library_of(module.__file__) == "lightning"
    assert kind_of("lightning", before_model=False) is None


def test_samples_of_a_line_sum_over_its_libraries() -> None:
    done = threading.Event()
    sampler = LineSampler(threading.get_ident(), lambda: "forward", itertools.count().__next__)
    sampler.start()
    until = time.perf_counter() + 10
    while not done.is_set() and time.perf_counter() < until:
        json.dumps([{"a": n} for n in range(200)], indent=1)
        _, rows = sampler.rows(1)
        if sum(row.samples for row in rows) >= 5:
            done.set()
    sampler.stop()

    _, rows = sampler.rows(1)

    assert done.is_set()
    assert all(sum(row.within.values()) == row.samples for row in rows)
    assert all(row.phase == "forward" for row in rows)


def test_a_thread_between_two_lines_is_at_its_functions_first() -> None:
    code = compile("def step():\n    pass\n", str(Path(__file__).with_name("user.py")), "exec").co_consts[0]
    frame = SimpleNamespace(f_code=code, f_lineno=None, f_back=None)

    where = find_line(stack_of(frame))  # type: ignore[arg-type]  # what it reads of a frame

    assert where is not None
    assert (where.line, where.function) == (1, "step")


def test_a_stack_is_read_without_a_collection_in_between_and_the_collector_stays_as_it_was() -> None:
    was_on: list[bool] = []

    class Frame:
        f_lineno = 3
        f_back = None

        @property
        def f_code(self) -> Any:
            was_on.append(gc.isenabled())
            return sys._getframe().f_code

    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            stack_of(Frame())  # type: ignore[arg-type]  # what it reads of a frame
            assert gc.isenabled() is on
        finally:
            gc.enable()
    assert was_on == [False, False]


def test_an_expensive_first_sample_does_not_make_later_ones_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    periods: list[float] = []
    cpu = iter([0.0, 0.001, *(0.001 + sample * 20e-6 for sample in range(400))])

    class Lock:
        def acquire(self, timeout: float) -> bool:
            periods.append(timeout)
            return len(periods) > 300

        def release(self) -> None:
            pass

    monkeypatch.setattr(time, "thread_time", lambda: next(cpu))
    LineSampler(threading.get_ident(), lambda: "forward", itertools.count().__next__)._run(Lock())  # type: ignore[arg-type]  # what it uses of one

    # The first took 1 ms, which at a hundredth of the time is one in 100 ms.
    assert max(periods[:200]) < 1.5 * 0.0075
    assert max(periods) < 0.02
    assert statistics.fmean(periods[250:]) == pytest.approx(PERIOD_S, rel=0.05)


def test_samples_take_a_hundredth_of_the_time_at_first_and_less_later(monkeypatch: pytest.MonkeyPatch) -> None:
    periods: list[float] = []
    cpu = (reading * 200e-6 for reading in range(10_000))

    class Lock:
        def acquire(self, timeout: float) -> bool:
            periods.append(timeout)
            return len(periods) > 400

        def release(self) -> None:
            pass

    monkeypatch.setattr(time, "thread_time", lambda: next(cpu))
    LineSampler(threading.get_ident(), lambda: "forward", itertools.count().__next__)._run(Lock())  # type: ignore[arg-type]  # what it uses of one

    assert periods[0] < PERIOD_S
    assert statistics.fmean(periods[60:200]) == pytest.approx(200e-6 / 0.01, rel=0.1)
    assert statistics.fmean(periods[300:]) == pytest.approx(200e-6 / 0.004, rel=0.1)


def test_a_loop_of_short_steps_is_sampled_half_as_often() -> None:
    for first in (True, False):
        short, long = (line_sampler.period_after(0.0, first=first, steps=steps) for steps in (20, 2))
        assert short == 2 * long


def test_what_a_sample_of_the_steps_stands_for_has_nothing_of_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, taken, periods = [0.0], [0], []

    class Lock:
        def acquire(self, timeout: float) -> bool:
            taken[0] += 1
            now[0] += 0.005 if taken[0] <= 300 else 0.030
            periods.append(timeout)
            return taken[0] > 400

        def release(self) -> None:
            pass

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    sampler = LineSampler(threading.get_ident(), lambda: "forward", lambda: max(0, taken[0] - 300))

    sampler._run(Lock())  # type: ignore[arg-type]  # what it uses of one

    assert sampler.rows(100)[0] == pytest.approx(30e6, rel=0.01)
    assert max(periods[302:]) < PERIOD_S  # the first of the steps come fast, however long the set-up was


def test_waits_differ_so_that_no_loop_can_run_in_step_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_ms: list[float] = []

    class Lock:
        def acquire(self, timeout: float) -> bool:
            looked_ms.append((looked_ms[-1] if looked_ms else 0.0) + timeout * 1e3)
            return len(looked_ms) > 400

        def release(self) -> None:
            pass

    LineSampler(threading.get_ident(), lambda: "forward", itertools.count().__next__)._run(Lock())  # type: ignore[arg-type]  # what it uses of one

    # Steps as long as a period: each tenth of a step is looked at by a tenth of the samples, and not one by all.
    for step_ms, looks in ((PERIOD_S * 500, looked_ms[:200]), (PERIOD_S * 1e3, looked_ms[200:])):
        tenths = collections.Counter(int(at % step_ms / step_ms * 10) for at in looks)
        assert max(tenths.values()) < 2 * len(looks) / 10
        assert len(tenths) == 10


def sampled(line: int, phase: str, *, after: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """A sample's line and phase, and what happens once it was taken."""
    return {"line": line, "phase": phase, "after": after}


def sample(samples: list[dict[str, Any]], step: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> LineSampler:
    """Have a sampler take these samples of a thread."""
    taken = iter(samples)
    now: dict[str, Any] = {}

    class Lock:
        def acquire(self, timeout: float) -> bool:
            now.get("after", lambda: None)()
            now.clear()
            now.update(next(taken, {}))
            return not now

        def release(self) -> None:
            pass

    def shown(self: SampledStacks, phase: str, stack: object) -> tuple[SampledLine, None]:
        return SampledLine(file="train.py", line=now["line"], function="main"), None

    monkeypatch.setattr(SampledStacks, "of", shown)
    sampler = LineSampler(threading.get_ident(), lambda: now["phase"], step)
    sampler._run(Lock())  # type: ignore[arg-type]  # what it uses of one
    return sampler


def lines_of(sampler: LineSampler) -> dict[int, int]:
    return {row.line: row.samples for row in sampler.rows(1)[1]}


def test_what_follows_the_last_step_is_not_sampled_time_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    step = iter([1, 1, 2, 2, *[3] * 100])
    samples = [sampled(line, "forward") for line in (10, 11, 10, 11, 99, 99, 99)]

    sampler = sample(samples, lambda: next(step), monkeypatch)

    assert lines_of(sampler) == {10: 2, 11: 2}


def test_the_last_step_counts_until_its_last_phase_where_the_loop_is_left_in_its_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = {"step": 1}
    samples = [sampled(10, "forward"), sampled(11, "other"), sampled(12, "optimizer"), sampled(99, "other")]
    sampler = sample(samples, lambda: now["step"], monkeypatch)
    assert lines_of(sampler) == {}

    sampler.leave_loop()
    now["step"] = 2  # the hooks close the step

    assert lines_of(sampler) == {10: 1, 11: 1, 12: 1}


def working(call: Callable[[], Any], phase: str = "forward") -> Any:
    """The sampled row of a thread that repeats ``call``."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            call()

    thread = threading.Thread(target=work)
    thread.start()
    sampler = LineSampler(thread.ident or 0, lambda: phase, itertools.count().__next__)  # type: ignore[arg-type, return-value]  # a phase
    sampler.start()
    until = time.perf_counter() + 20
    while sum(row.samples for row in sampler.rows(1)[1]) < 40 and time.perf_counter() < until:
        time.sleep(0.02)
    sampler.stop()
    done.set()
    thread.join()
    return max(sampler.rows(1)[1], key=lambda row: row.samples)


def spin() -> None:
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows another thread's state")
def test_waiting_is_told_from_computing_in_python_and_in_c_by_the_threads_processor_time() -> None:
    lock = threading.Lock()
    lock.acquire()
    large = torch.randn(400, 400)

    asleep = working(lambda: time.sleep(0.002))
    locked = working(lambda: lock.acquire(timeout=0.002))
    python = working(spin)
    computing = working(lambda: large @ large)

    assert asleep.waiting[""] > 0.7 * asleep.samples
    assert locked.waiting[""] > 0.7 * locked.samples
    assert python.waiting.get("", 0) < 0.3 * python.samples
    assert computing.waiting.get("", 0) < 0.3 * computing.samples


@pytest.mark.skipif(sys.platform != "linux" or sys.version_info < (3, 11), reason="co_positions is from Python 3.11")
def test_the_expression_that_waited_is_known_as_it_is_in_the_source() -> None:
    assert working(lambda: (time.sleep(0.002), 1)).waits_for == "time.sleep(0.002)"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows another thread's state")
def test_a_fetch_in_the_training_process_is_asked_for_waiting_and_a_loader_with_workers_is_not() -> None:
    batches = [torch.utils.data.DataLoader([0] * 9, num_workers=1, timeout=60, collate_fn=slow_batch)]

    assert working(lambda: time.sleep(0.002), "data").waiting[""] > 0
    assert working(lambda: [*batches[0]], "data").waiting is None


def slow_batch(batch: list[int]) -> list[int]:
    time.sleep(0.05)
    return batch


def test_a_line_that_several_lines_reach_keeps_each_of_them_with_its_samples() -> None:
    def often() -> None:
        spin()
        spin()

    def seldom() -> None:
        spin()

    row = working(lambda: (often(), seldom()))

    assert {caller.function.rpartition(".")[2] for caller in row.callers} == {"often", "seldom"}
    assert sum(caller.samples for caller in row.callers) == row.samples
    assert row.called_from == row.callers[0].at
    assert [part.samples for part in row.by_caller()] == [caller.samples for caller in row.callers]


def test_no_collection_runs_while_the_frames_of_threads_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []
    real = sys._current_frames
    monkeypatch.setattr(sys, "_current_frames", lambda: enabled.append(gc.isenabled()) or real())

    assert frame_of(threading.get_ident()) is not None

    assert enabled == [False]
    assert gc.isenabled()
