"""``with perfkit.range("x")``: nesting, threads, tasks, copies, names beyond the limit, bad arguments."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import perfkit
from perfkit.ranges import start_recorder
from perfkit.ranges.range_arguments import check_payload
from perfkit.ranges.recorder import RangeRecorder
from perfkit.run.records import RangeRow

Row = Callable[[RangeRecorder, str], RangeRow]


def test_a_range_is_one_object_per_name_and_with_returns_it() -> None:
    made = perfkit.range("same")

    with made as entered:
        assert entered is made
    assert perfkit.range("same") is made
    assert perfkit.range("same", color="red") is not made
    assert perfkit.range("same", color="red") is perfkit.range("same", color="#ff0000")
    assert perfkit.range("same", domain="perfkit") is made


def test_nested_ranges_share_out_their_time(recorder: RangeRecorder, row: Row) -> None:
    for _ in range(3):
        with perfkit.range("outer"), perfkit.range("inner"), perfkit.range("inner"):
            pass

    outer, inner = row(recorder, "outer"), row(recorder, "inner")
    assert (outer.count, inner.count) == (3, 6)
    assert outer.self_ns + inner.self_ns == outer.total_ns
    assert outer.min_ns <= outer.total_ns // 3 <= outer.max_ns
    assert sum(inner.hist) == 6


def test_an_exit_stack_enters_and_leaves_ranges_on_and_off(row: Row) -> None:
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(perfkit.range("stacked")) is perfkit.range("stacked")
    recorder = start_recorder()
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(perfkit.range("stacked")) is perfkit.range("stacked")
        recorder.drain()
    recorder.stop()

    assert row(recorder, "stacked").count == 1


def test_the_users_exception_passes_through_and_the_range_ends(recorder: RangeRecorder, row: Row) -> None:
    with pytest.raises(KeyError), perfkit.range("raising"):
        raise KeyError
    assert row(recorder, "raising").count == 1


def test_a_range_open_while_the_recorder_starts_or_stops_is_balanced() -> None:
    with perfkit.range("across start"):
        recorder = start_recorder()
    with perfkit.range("across stop"):
        recorder.stop()

    assert recorder.rows() == ()
    assert recorder.dropped == 0


def test_each_thread_has_its_own_row(recorder: RangeRecorder) -> None:
    def work() -> None:
        with perfkit.range("worked"):
            pass

    for name in ("one", "two"):
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join()
    work()

    assert {(row.thread, row.count) for row in recorder.rows()} == {("one", 1), ("two", 1), ("MainThread", 1)}


def test_async_ranges_of_tasks_that_overlap_end_their_own(recorder: RangeRecorder) -> None:
    async def task(name: str, mine: asyncio.Event, other: asyncio.Event) -> None:
        async with perfkit.range(name):
            other.set()
            await mine.wait()

    async def main() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        await asyncio.gather(task("first", first, second), task("second", second, first))

    asyncio.run(main())

    assert {(row.name, row.count) for row in recorder.rows()} == {("first", 1), ("second", 1)}
    assert recorder.dropped == 0


def test_push_and_pop_nest_per_thread(recorder: RangeRecorder, row: Row) -> None:
    perfkit.range.push("pushed", color="blue")
    perfkit.range.push("pushed inside")
    perfkit.range.pop()
    perfkit.range.pop()

    assert row(recorder, "pushed").total_ns > row(recorder, "pushed inside").total_ns


def test_a_pop_too_many_is_reported_once_and_does_nothing(recorder: RangeRecorder) -> None:
    with pytest.warns(perfkit.PerfkitWarning, match=rf"without a perfkit.range.push.*{os.path.basename(__file__)}"):
        perfkit.range.pop()
    perfkit.range.pop()
    assert recorder.rows() == ()


def test_ranges_pickle_and_copy_as_the_same_range() -> None:
    made = perfkit.range("kept", color="red", category="c", domain="d")

    assert pickle.loads(pickle.dumps(made)) is made
    assert copy.deepcopy({"range": made})["range"] is made
    assert copy.copy(made) is made


@pytest.mark.parametrize("name", [3, 2.5, b"bytes", ["list"], "", "nul\0", "\ud800"])
@pytest.mark.parametrize("on", [False, True])
def test_an_invalid_name_raises_when_the_range_is_made(name: Any, on: bool) -> None:
    recorder = start_recorder() if on else None
    try:
        with pytest.raises(perfkit.UsageError, match="the name of a range must"):
            perfkit.range(name)
        with pytest.raises(perfkit.UsageError, match="the name of a range must"):
            perfkit.mark(name)
    finally:
        if recorder:
            recorder.stop()


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("color", "reddish"),
        ("color", -1),
        ("color", True),
        ("color", []),
        ("category", 3),
        ("domain", {}),
        ("domain", ""),
    ],
)
def test_an_invalid_color_category_or_domain_raises_when_the_range_is_made(keyword: str, value: Any) -> None:
    with pytest.raises(perfkit.UsageError, match=f"the {keyword} of a range must"):
        perfkit.range("fine", **{keyword: value})
    with pytest.raises(perfkit.UsageError, match=f"the {keyword} of a range must"):
        perfkit.mark("fine", **{keyword: value})


def test_a_payload_of_a_wrong_type_is_reported_once_with_its_line(recorder: RangeRecorder, row: Row) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            with perfkit.range("loaded", payload=object()):  # type: ignore[call-overload]  # that is the test
                pass
    (warning,) = caught

    assert "got object" in str(warning.message)
    assert warning.filename == __file__
    assert row(recorder, "loaded").count == 3


def test_a_payload_warning_that_is_an_error_does_not_raise_either(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with perfkit.range("strict", payload={}):  # type: ignore[call-overload]  # that is the test
            pass

    assert "got dict" in capsys.readouterr().err


def test_numbers_of_numpy_are_payloads_and_huge_ints_are_not() -> None:
    numbers = (1, True, 2.5, numpy.int32(3), numpy.float32(0.5))
    assert [check_payload(value) for value in numbers] == [1, 1, 2.5, 3, 0.5]
    assert [check_payload(value) for value in (2**63, "1", 1j, numpy.ones(1))] == [None] * 4


def test_a_with_statement_without_a_name_raises() -> None:
    with pytest.raises(perfkit.UsageError, match="needs a name"), perfkit.range():  # type: ignore[attr-defined]  # that
        pass
    with pytest.raises(perfkit.UsageError, match="push needs a name"):
        perfkit.range.push(None)  # type: ignore[arg-type]  # that is the test
