"""unfused-elementwise: a row of elementwise ops is reported with what one pass would save."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.patterns import ElementwiseChain
from perfkit.rules.ops import unfused_elementwise

MS = 1_000_000


def chain(**fields: Any) -> ElementwiseChain:
    """Eight ops of 40 ms with their backward, of which the longest take 10 and those that compute functions 15."""
    defaults: dict[str, Any] = {
        "ops": tuple(f"aten::{name}" for name in ("pow", "mul", "add", "mul", "mul", "sin", "add", "mul")),
        "count": 2.0,
        "ns": 20 * MS,
        "backward_ns": 20 * MS,
        "longest_ns": 10 * MS,
        "functions_ns": 15 * MS,
        "bytes": 180 * 2**20,
        "avoided_bytes": 140 * 2**20,
        "shape": "8x256x192",
        "dtype": "float",
        "at": Location(file="model.py", line=18, function="wave"),
    }
    return ElementwiseChain(**defaults | fields)


def test_on_a_cpu_one_pass_still_takes_its_longest_op(build: Any) -> None:
    patterns = build.patterns(step_ms=100, chains=(chain(),))

    [finding] = build.findings(unfused_elementwise, build.step(100), patterns)

    assert (finding.saving_low_ns, finding.cost_ns, finding.saving_high_ns) == (25 * MS, 33 * MS, 37.95 * MS)
    assert (finding.spent.file, finding.spent.line) == ("model.py", 18)
    assert "torch.compile the function" in finding.advice
    assert "Triton" not in finding.advice
    assert "8 elementwise ops in a row (pow mul add mul mul sin ...)" in finding.message


def test_a_row_of_functions_saves_at_least_half_of_the_high_end(build: Any) -> None:
    patterns = build.patterns(step_ms=100, chains=(chain(functions_ns=39 * MS),))

    [finding] = build.findings(unfused_elementwise, build.step(100), patterns)

    assert finding.saving_low_ns == finding.cost_ns // 2


def test_on_a_device_the_saving_is_the_bytes_that_are_not_moved(build: Any) -> None:
    patterns = build.patterns(chains=(chain(),))
    device = build.device(1000, compute=1000)

    [finding] = build.findings(unfused_elementwise, build.traced_step(100), patterns, device)

    assert "Triton kernel" in finding.advice
    assert finding.saving_high_ns == pytest.approx(40 * MS * 140 / 180, rel=1e-6)
    assert finding.saving_low_ns == pytest.approx(20 * MS * 140 / 180, rel=1e-6)


def test_in_float64_half_is_left_to_float64_in_step(build: Any) -> None:
    patterns = build.patterns(step_ms=100, chains=(chain(dtype="double"),))

    [finding] = build.findings(unfused_elementwise, build.step(100), patterns)

    assert finding.cost_ns == 33 * MS // 2


def test_less_than_a_tenth_of_the_step_is_not_reported(build: Any) -> None:
    patterns = build.patterns(step_ms=400, chains=(chain(),))

    assert build.findings(unfused_elementwise, build.step(400), patterns) == []
    assert build.findings(unfused_elementwise, build.step(400)) == []


def test_where_only_the_high_end_reaches_a_tenth_it_is_reported_for_a_device_only(build: Any) -> None:
    # Of 40 ms a CPU saves 25 to 33, which is 8 to 11% of the step; by bytes it is 16 to 31, which is 8 to 16%.
    on_cpu = build.patterns(step_ms=300, chains=(chain(),))
    on_device = build.patterns(chains=(chain(),))

    assert build.findings(unfused_elementwise, build.step(300), on_cpu) == []
    device = build.device(1000, compute=1000)
    [_] = build.findings(unfused_elementwise, build.traced_step(200), on_device, device)


def test_a_gelu_that_is_written_out_has_the_call_that_computes_it(build: Any) -> None:
    ops = tuple(f"aten::{name}" for name in ("mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"))

    patterns = build.patterns(step_ms=100, chains=(chain(ops=ops),))

    [finding] = build.findings(unfused_elementwise, build.step(100), patterns)

    assert "gelu_pytorch_tanh" in finding.advice
