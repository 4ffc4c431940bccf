"""Reading a thread's events: at once or one by one, cut anywhere, nested or not, the sums are the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfkit.ranges.event_stream import RangeSums, SumStream

T = 1 << 40


def read(*parts: list[int]) -> tuple[dict[int, RangeSums], SumStream]:
    sums: dict[int, RangeSums] = {}
    stream = SumStream(lambda number: sums.setdefault(number, RangeSums()))
    for part in parts:
        stream.read(part)
    return sums, stream


def facts(sums: dict[int, RangeSums]) -> dict[int, tuple[object, ...]]:
    return {number: (s.count, s.total_ns, s.self_ns, s.min_ns, s.max_ns, tuple(s.hist)) for number, s in sums.items()}


def test_a_child_is_taken_from_its_parents_self_time() -> None:
    sums, _ = read([1, T, 2, T + 10, ~2, T + 30, 2, T + 40, ~2, T + 45, ~1, T + 100])

    assert (sums[1].count, sums[1].total_ns, sums[1].self_ns) == (1, 100, 75)
    assert (sums[2].count, sums[2].total_ns, sums[2].min_ns, sums[2].max_ns) == (2, 25, 5, 20)
    assert {bucket: n for bucket, n in enumerate(sums[2].hist) if n} == {2: 1, 4: 1}


def test_an_event_between_the_two_halves_of_another_spoils_nothing() -> None:
    # A signal handler ran a range of its own after the outer one had written its number but not its time.
    sums, stream = read([1, 2, T + 1, ~2, T + 2, T + 3, ~1, T + 9])

    assert (sums[2].total_ns, sums[1].total_ns, stream.dropped) == (1, 6, 0)


def test_ranges_that_end_out_of_order_keep_their_durations() -> None:
    sums, stream = read([1, T, 2, T + 10, ~1, T + 30, ~2, T + 60])

    assert (sums[1].total_ns, sums[2].total_ns) == (30, 50)
    assert sums[1].self_ns + sums[2].self_ns == 60
    assert (stream.opened, stream.dropped) == ([], 0)


@st.composite
def streams(draw: st.DrawFn) -> list[int]:
    """Some hundred events with times, mostly nested; in one of three streams an end is foreign or early."""
    values: list[int] = []
    opened: list[int] = []
    now = T
    wild = draw(st.integers(0, 2)) == 0
    for choice in draw(st.lists(st.integers(0, 99), min_size=210, max_size=260)):
        now += choice * choice
        if wild and choice == 99:
            values += [~draw(st.integers(0, 5)), now]
        elif opened and choice % 2:
            values += [~opened.pop(), now]
        else:
            opened.append(choice % 6)
            values += [opened[-1], now]
    return values


@given(streams(), st.integers(0, 500))
def test_reading_at_once_equals_reading_one_by_one_wherever_it_is_cut(values: list[int], cut: int) -> None:
    pieces = [values[index : index + 7] for index in range(0, len(values), 7)]
    one_by_one, slow = read(*pieces)
    at_once, fast = read(values[:cut], values[cut:])

    assert facts(at_once) == facts(one_by_one)
    assert (fast.opened, fast.dropped) == (slow.opened, slow.dropped)
