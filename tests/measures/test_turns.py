"""Devices of one process: how much of the steps any and several compute, and whether one waits for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perfkit.measures.device.turns import measure_turns
from perfkit.measures.results.device import DeviceTurns

if TYPE_CHECKING:
    from .conftest import TraceBuilder

STEP, MS = 100_000_000, 1_000_000
PEER, WITHIN = "Memcpy PtoP (Device -> Device)", "Memcpy DtoD (Device -> Device)"


class Devices:
    """Steps of 100 ms in which each device runs kernels at given times, in ms."""

    def __init__(self, build: TraceBuilder) -> None:
        self.build = build

    def run(
        self, step: int, device: int, begin: float, end: float, *, launched: float | None = None, **how: Any
    ) -> None:
        build, low = self.build, step * STEP + 10 * MS
        start, stop = low + round(begin * MS), low + round(end * MS)
        at = start - 10_000 if launched is None else low + round(launched * MS)
        build.correlation += 1
        build.add("cuda_runtime", "cudaLaunchKernel", at, at + 100, 1, how.get("pid", 9), correlation=build.correlation)
        name = how.get("name", "gemm")
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        where = {"device": device, "stream": 7, "correlation": build.correlation}
        build.add(cat, name, start, stop, 7, device, **where)

    def measured(self, steps: int = 3) -> DeviceTurns | None:
        for step in range(steps):
            self.build.step(step, step * STEP + 9 * MS, (step + 1) * STEP + 8 * MS)
        return measure_turns(self.build.read())


@pytest.fixture
def devices(build: TraceBuilder) -> Devices:
    return Devices(build)


def test_times_of_each_of_any_and_of_several_devices_are_exact(devices: Devices) -> None:
    for step in range(3):
        devices.run(step, 0, 0, 40)
        devices.run(step, 1, 35, 90)

    found = devices.measured()

    assert found is not None
    assert (found.devices, found.compute_ns) == ((0, 1), (120 * MS, 165 * MS))
    assert (found.any_ns, found.several_ns) == (270 * MS, 15 * MS)
    assert (found.steps, found.shared_steps, found.dependent_steps) == (3, 3, 0)


@pytest.mark.parametrize(
    ("name", "on", "begin", "dependent"),
    [
        (PEER, 0, 40, 3),
        (PEER, 1, 40, 3),
        (WITHIN, 0, 40, 3),
        # Each device copies within itself: a clone, a concatenation.
        (WITHIN, 1, 40, 0),
        # While the first one still computes: not its result.
        (PEER, 0, 20, 0),
    ],
)
def test_what_follows_a_copy_from_the_other_device_depends_on_it(
    devices: Devices, name: str, on: int, begin: float, dependent: int
) -> None:
    for step in range(3):
        devices.run(step, 0, 0, 40)
        devices.run(step, on, begin, begin + 1, name=name)
        devices.run(step, 1, 41, 80)

    found = devices.measured()

    assert found is not None
    assert found.dependent_steps == dependent
    assert found.copies == (3 if name == PEER else 0)


@pytest.mark.parametrize(("launched", "dependent"), [(5, 3), (39.99, 0), (40.5, 0)])
def test_what_was_launched_while_the_other_computes_and_begins_after_it_depends_on_it(
    devices: Devices, launched: float, dependent: int
) -> None:
    for step in range(3):
        devices.run(step, 0, 0, 40, launched=0)
        devices.run(step, 1, 41, 80, launched=launched)

    found = devices.measured()

    assert found is not None
    assert found.dependent_steps == dependent


def test_devices_that_compute_in_steps_of_their_own_share_none(devices: Devices) -> None:
    for step in range(4):
        devices.run(step, step % 2, 0, 90)

    found = devices.measured(4)

    assert found is not None
    assert found.shared_steps == 0


@pytest.mark.parametrize("other", ["none", "a tenth", "communication", "another process"])
def test_one_device_that_computes_takes_no_turns(devices: Devices, other: str) -> None:
    for step in range(3):
        devices.run(step, 0, 0, 40)
        if other == "a tenth":
            devices.run(step, 1, 41, 45)
        elif other == "communication":
            devices.run(step, 1, 41, 80, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
        elif other == "another process":
            devices.run(step, 1, 41, 80, pid=10)

    assert devices.measured() is None
