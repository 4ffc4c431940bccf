"""cannot-tell: the reason why a recording has no verdict."""

from __future__ import annotations

from typing import Any

from perfkit.measures.results.measurements import TraceFacts
from perfkit.rules.verdicts import cannot_tell


def facts(**fields: Any) -> TraceFacts:
    defaults: dict[str, Any] = {
        "path": "t.json",
        "format": "kineto",
        "events": 100,
        "device_events": 0,
        "devices": (),
        "steps": 0,
        "span_ns": 1_000_000,
        "rank": None,
        "world_size": None,
        "has_stacks": False,
        "has_shapes": False,
        "lost": (),
    }
    return TraceFacts(**{**defaults, **fields})


def test_a_trace_without_steps_and_device_has_no_verdict(build: Any) -> None:
    [finding] = build.findings(cannot_tell, facts())

    assert finding.message == (
        "Cannot tell: the trace marks no steps and holds no device events, so no time can be counted per step."
    )


def test_an_empty_recording_has_no_verdict(build: Any) -> None:
    [finding] = build.findings(cannot_tell)

    assert "no step and no event" in finding.message


def test_a_step_whose_time_is_known_and_not_explained_is_left_to_another_verdict(build: Any) -> None:
    assert build.findings(cannot_tell, build.step(100, data=1, forward=9, other=90)) == []
    assert build.findings(cannot_tell, build.device(1000, compute=300, causes={"allocation": 700})) == []
