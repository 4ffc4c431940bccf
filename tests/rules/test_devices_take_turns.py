"""devices-take-turns: devices of one process that compute one after the other, each waiting for the other's result."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.device import DeviceTurns
from perfkit.rules.device import devices_take_turns

MS = 1_000_000
TURNS = DeviceTurns(
    devices=(0, 1),
    compute_ns=(500 * MS, 400 * MS),
    window_ns=1_000 * MS,
    any_ns=880 * MS,
    several_ns=20 * MS,
    steps=10,
    shared_steps=10,
    dependent_steps=10,
    copies=20,
    at=Location(file="model.py", line=40, function="forward"),
)


def test_the_busiest_device_could_fill_the_step(build: Any) -> None:
    [finding] = build.findings(devices_take_turns, build.traced_step(100), TURNS)

    assert (finding.severity, finding.cost_ns) == ("critical", 50 * MS)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (0, 50 * MS)
    assert (finding.spent.file, finding.spent.line) == ("model.py", 40)
    assert "Devices 0 and 1 compute in turns: at the same time only 2% of the step" in finding.message


@pytest.mark.parametrize(
    "instead",
    [
        {"several_ns": 100 * MS},
        {"any_ns": 690 * MS},
        {"shared_steps": 5},
        {"dependent_steps": 5},
        {"compute_ns": (960 * MS, 250 * MS)},
    ],
    ids=["they overlap", "mostly idle", "steps of their own", "none waits for the other", "one fills the step"],
)
def test_other_devices_do_not_take_turns(build: Any, instead: dict[str, Any]) -> None:
    turns = msgspec.structs.replace(TURNS, **instead)

    assert build.findings(devices_take_turns, build.traced_step(100), turns) == []


def test_a_recording_without_steps_may_be_one_program_after_the_other(build: Any) -> None:
    device = build.device(1000, compute=500, causes={"dependency": 500})

    assert build.findings(devices_take_turns, device, TURNS) == []
