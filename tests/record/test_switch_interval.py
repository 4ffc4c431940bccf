"""The switch interval is short while a sampler waits, the program's own during a sample, and restored when it ends."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from perfkit.record.samplers import sampled_stacks
from perfkit.record.samplers.line_sampler import LineSampler
from perfkit.record.samplers.switch_interval import SWITCH_S, SwitchInterval, wait_exactly


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield 0.004
    sys.setswitchinterval(before)


def test_the_interval_from_before_is_restored(usual: float) -> None:
    switch = SwitchInterval()

    switch.shorten()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    switch.restore()

    assert sys.getswitchinterval() == pytest.approx(usual)


def test_an_interval_that_the_program_sets_in_between_stays() -> None:
    switch = SwitchInterval()
    switch.shorten()

    sys.setswitchinterval(0.02)
    switch.restore()
    assert sys.getswitchinterval() == pytest.approx(0.02)

    switch.shorten()
    switch.restore()
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_a_shorter_interval_of_the_program_stays() -> None:
    sys.setswitchinterval(0.00001)
    switch = SwitchInterval()

    switch.shorten()
    switch.restore()

    assert sys.getswitchinterval() == pytest.approx(0.00001)


def test_a_sampler_samples_with_the_usual_interval_and_restores_it(
    usual: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking: list[float] = []
    seen = threading.Event()

    def find_line(frame: object) -> None:
        looking.append(sys.getswitchinterval())
        seen.set()

    monkeypatch.setattr(sampled_stacks, "find_line", find_line)
    one = LineSampler(threading.get_ident(), lambda: "forward", itertools.count().__next__)

    one.start()
    assert seen.wait(10)
    deadline = time.monotonic() + 10
    while sys.getswitchinterval() > 2 * SWITCH_S and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    one.stop()

    assert looking == pytest.approx([usual] * len(looking))
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_while_it_rests_the_usual_interval_is_kept_whoever_asks_for_the_short_one() -> None:
    usual = sys.getswitchinterval()
    switch = SwitchInterval()
    switch.shorten()
    switch.rest()
    switch.shorten()
    assert sys.getswitchinterval() == usual
    switch.resume()
    switch.shorten()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    switch.restore()
    assert sys.getswitchinterval() == usual


def test_a_sampler_that_rests_hardly_asks_for_the_lock_while_it_is_held() -> None:
    sampler = LineSampler(threading.get_ident(), lambda: "forward", itertools.count().__next__)

    def cost_of_a_long_call() -> float:
        time.sleep(0.05)  # its samples until now are counted
        before = sampler.cost_s
        sum(range(20_000_000))  # C code that keeps the interpreter lock
        time.sleep(0.05)
        return sampler.cost_s - before

    sampler.start()
    try:
        awake = cost_of_a_long_call()
        sampler.rest()
        resting = cost_of_a_long_call()
    finally:
        sampler.resume()
        sampler.stop()

    assert resting < 0.5 * awake


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no timer slack")
def test_the_waits_of_a_samplers_thread_are_exact_and_those_of_the_program_as_before() -> None:
    def slack_ns() -> int:
        return int(ctypes.CDLL(None).prctl(30, 0, 0, 0, 0))  # PR_GET_TIMERSLACK

    found: list[int] = []
    # Another test may have run a sampler in this thread.
    ctypes.CDLL(None).prctl(29, 50_000, 0, 0, 0)

    def sample() -> None:
        wait_exactly()
        found.append(slack_ns())

    thread = threading.Thread(target=sample)
    thread.start()
    thread.join()

    assert found == [1]
    assert slack_ns() == 50_000
