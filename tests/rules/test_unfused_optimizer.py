"""unfused-optimizer: one that updates parameter by parameter; a fused or memory-limited one is not reported."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.measures.results.patterns import OptimizerUpdate
from perfkit.rules.ops import unfused_optimizer

MS = 1_000_000


def update(**fields: Any) -> OptimizerUpdate:
    """Adam over 160 parameters: 2,000 ops in 40 ms on the host."""
    defaults: dict[str, Any] = {
        "name": "Adam",
        "host_ns": 40 * MS,
        "ops": 2000.0,
        "foreach": 0.0,
        "fused": 0.0,
        "op_ns": 10 * MS,
        "at": Location(file="train.py", line=37, function="main"),
    }
    return OptimizerUpdate(**defaults | fields)


def test_an_optimizer_of_torch_is_reported_where_it_is_called(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(),))

    [finding] = build.findings(unfused_optimizer, build.step(100), patterns)

    assert (finding.spent.file, finding.spent.line) == ("train.py", 37)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (24 * MS, 36 * MS)
    assert finding.advice.startswith("torch.optim.Adam(..., fused=True)")


def test_the_phase_timed_by_the_step_clock_is_used_before_the_recording(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(), update(name="SGD", host_ns=10 * MS, ops=2.0)))

    [finding] = build.findings(unfused_optimizer, build.step(100, forward=40, optimizer=60), patterns)

    # Adam takes 40 of the 50 ms in the recording, so 48 of the 60 ms.
    assert finding.saving_high_ns == round(0.9 * 48 * MS)


def test_a_custom_optimizer_is_reported_at_its_loop(build: Any) -> None:
    body = Location(file="train.py", line=34, function="Lion.step")
    patterns = build.patterns(step_ms=100, updates=(update(name="Lion", body=body),))
    lines = build.loop("train.py", line=34, loop_line=30, runs=200)

    [finding] = build.findings(unfused_optimizer, build.step(100), patterns, lines)

    assert (finding.spent.line, finding.spent.function) == (30, "Lion.step")
    assert "lists of tensors" in finding.advice


def test_on_a_device_it_costs_the_time_that_the_device_waits_for_it(build: Any) -> None:
    patterns = build.patterns(updates=(update(device_ns=4 * MS, kernels=2000.0),))
    device = build.device(1000, compute=700, causes={"optimizer": 200, "data loading": 100})

    [finding] = build.findings(unfused_optimizer, build.traced_step(100), patterns, device)

    assert finding.saving_high_ns == round(0.9 * 24 * MS)


def test_fused_list_large_and_few_updates_are_not_reported(build: Any) -> None:
    healthy = (
        update(ops=2.0, fused=1.0),
        update(ops=300.0, foreach=200.0),
        update(ops=60.0, op_ns=30 * MS),
        update(ops=20.0),
    )
    patterns = build.patterns(step_ms=100, updates=healthy)

    assert build.findings(unfused_optimizer, build.step(100), patterns) == []
    assert build.findings(unfused_optimizer, build.step(100)) == []
