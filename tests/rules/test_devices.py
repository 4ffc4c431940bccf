"""Each device of a trace is judged, not the busiest only."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.measures.results.device import DeviceTime
from perfkit.rules.data import input_bound
from perfkit.rules.device import copies_dominate, launch_bound
from perfkit.rules.ranks import exposed_communication

MS = 1_000_000


def on(number: int, device: DeviceTime) -> DeviceTime:
    return msgspec.structs.replace(device, device=number)


def test_the_problem_of_a_less_busy_device_is_found(build: Any) -> None:
    busy = on(0, build.device(100, compute=60, causes={"data loading": 40}))
    late = on(1, build.device(100, compute=20, causes={"operators": 80}))

    (finding,) = build.findings(launch_bound, build.step(10), busy, late)

    assert finding.range == "device 1"
    assert finding.message.endswith("(device 1); device 0 is busy 60% of the step.")
    assert finding.cost_ns == 8 * MS
    # The step cannot become shorter than device 0 is busy.
    assert finding.saving_high_ns == 4 * MS


def test_a_problem_hidden_behind_another_device_is_information(build: Any) -> None:
    busy = on(0, build.device(100, compute=97, causes={"operators": 3}))
    late = on(1, build.device(100, compute=20, causes={"operators": 80}))

    (finding,) = build.findings(launch_bound, build.step(10), busy, late)

    assert finding.severity == "info"
    assert finding.saving_high_ns == round(0.3 * MS)


def test_equal_findings_on_several_devices_are_one_that_names_them(build: Any) -> None:
    devices = [on(i, build.device(100, compute=50 + i, causes={"operators": 50 - i})) for i in range(3)]

    (finding,) = build.findings(launch_bound, build.step(10), *devices)

    assert finding.range == "devices 0, 1 and 2"
    # They work at the same time: the largest cost, not the sum.
    assert finding.cost_ns == 5 * MS
    assert {one.name for one in finding.evidence} >= {"cost on device 0", "cost on device 1", "cost on device 2"}


def test_a_single_device_is_not_named(build: Any) -> None:
    (finding,) = build.findings(
        copies_dominate, build.step(10), build.device(100, copy=60, exposed_copy=60, causes={"copy call": 5})
    )

    assert finding.range is None
    assert "(device" not in finding.message


def test_a_rule_that_asks_for_all_devices_or_none_is_called_once(build: Any) -> None:
    devices = [on(i, build.device(100, compute=50, causes={"data loading": 50})) for i in range(2)]
    step = build.step(10, data=5, forward=5)

    assert len(build.findings(input_bound, step, build.rank(), *devices)) == 1


def test_communication_is_found_on_the_device_that_waits_for_it(build: Any) -> None:
    computing = on(0, build.device(100, compute=60, causes={"operators": 40}))
    waiting = on(1, build.device(100, compute=10, communication=50, exposed_communication=50, causes={"operators": 40}))

    (finding,) = build.findings(exposed_communication, build.step(10), computing, waiting)

    assert finding.range == "device 1"
