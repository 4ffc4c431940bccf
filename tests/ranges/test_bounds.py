"""Memory of the recorder: lists, rows and drains have bounds; what does not fit is counted and reported once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import perfkit
from perfkit.ranges import listeners, recorder, recorder_listener, start_recorder
from perfkit.ranges.recorder import RangeRecorder

LIMIT = 100


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeRecorder]:
    """A recorder whose lists are full at 100 values, whose threads check their length, and whose drainer is starved."""
    monkeypatch.setattr(recorder_listener, "LIMIT", LIMIT)
    monkeypatch.setattr(recorder, "_PATIENCE", 0.001)
    started = start_recorder()
    started._stopped.set()
    started._begun.set()
    started._drainer.join()
    listeners.switch(listeners.DENSE, True)
    yield started
    started.stop()


def length(of: RangeRecorder) -> int:
    return len(of.tls.buffer)


def enter(name: str, times: int, of: RangeRecorder) -> int:
    """Enter a range so many times; the longest that the list was."""
    longest = 0
    for _ in range(times):
        with perfkit.range(name):
            pass
        longest = max(longest, length(of))
    return longest


def test_a_thread_with_a_full_list_drains_it_itself_and_nothing_is_lost(small: RangeRecorder) -> None:
    @perfkit.range("called densely")
    def call() -> None: ...

    longest = 0
    for _ in range(1000):
        with perfkit.range("entered densely"):
            call()
        longest = max(longest, length(small))

    assert longest <= LIMIT + 8
    assert {row.name: row.count for row in small.rows()} == {"called densely": 1000, "entered densely": 1000}
    assert small.dropped == 0


def test_a_list_that_nobody_can_drain_is_dropped_counted_and_reported_once(small: RangeRecorder) -> None:
    # As if another thread had been draining all the while.
    with small._lock, pytest.warns(perfkit.PerfkitWarning, match=r"have been dropped.*test_bounds\.py") as reported:
        longest = enter("too dense", 1000, small)

    assert longest <= 2 * LIMIT + 4
    (row,) = small.rows()
    assert row.count + small.dropped == 1000
    assert 0 < row.count <= LIMIT
    assert len(reported) == 1


def test_a_range_open_while_a_list_is_dropped_is_not_matched_with_a_later_end(small: RangeRecorder) -> None:
    listeners._warned.add("dropped")
    outer = perfkit.range("open meanwhile")
    outer.__enter__()
    small.drain()
    with small._lock:
        enter("filling", 60, small)
    outer.__exit__(None, None, None)

    assert "open meanwhile" not in {row.name for row in small.rows()}
    assert small.dropped > 0


def test_threads_check_the_length_of_their_lists_after_a_large_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MANY", LIMIT)
    started = start_recorder()
    started._stopped.set()
    started._begun.set()
    started._drainer.join()
    modes: list[int] = []

    def wait(period: float) -> bool:
        modes.append(listeners.mode)
        for _ in range(LIMIT if len(modes) == 2 else 1):
            with perfkit.range("burst"):
                pass
        return len(modes) == 3

    monkeypatch.setattr(started._stopped, "wait", wait)
    started._drain_until_stopped()
    started.stop()

    assert [*modes, listeners.mode] == [listeners.RECORDER, listeners.RECORDER, listeners.RECORDER | listeners.DENSE, 0]


def test_lists_have_a_bound_from_before_a_large_drain_is_read_whoever_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MANY", LIMIT)
    started = start_recorder()
    modes: list[int] = []
    read = started._read
    monkeypatch.setattr(started, "_read", lambda: (modes.append(listeners.mode), read()))
    for _ in range(LIMIT):
        with perfkit.range("burst"):
            pass
    started.rows()
    started.stop()

    assert modes[-1] == 0
    assert listeners.RECORDER | listeners.DENSE in modes[:-1]


def test_rows_beyond_their_limit_share_one_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MAX_ROWS", 3)
    started = start_recorder()
    for index in range(6):
        with perfkit.range(f"row {index}"):
            pass
    with pytest.warns(perfkit.PerfkitWarning, match="more than 3 pairs of a range and a thread"):
        rows = started.rows()
    started.stop()

    assert [row.count for row in rows] == [1, 1, 1, 3]
    assert rows[-1].name == "(more than 4096 names)"


@pytest.mark.slow
def test_ten_million_ranges_are_recorded_in_bounded_memory(run_python: Callable[..., object]) -> None:
    run_python(
        """
        import threading, perfkit
        from perfkit.ranges import start_recorder

        def peak_mb():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

        @perfkit.range("called")
        def call(): pass

        def work(n):
            for _ in range(n):
                with perfkit.range("entered"):
                    call()

        recorder = start_recorder()
        work(150_000)
        # The burst begins before the drainer has seen one, and during a drain.
        recorder.rows()
        before = peak_mb()
        threads = [threading.Thread(target=work, args=(2_500_000,), name=f"worker-{i}") for i in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        recorder.stop()
        peak = peak_mb()
        assert sum(row.count for row in recorder.rows()) + recorder.dropped == 10_300_000
        assert recorder.dropped == 0, recorder.dropped
        # A first burst of 40 MB, two lists of 7 MB, 40 MB in a drain, and as much again for a busy machine.
        assert peak - before < 200, (before, peak)
        """
    )
