"""float64-in-step: reported at the line where the type comes in, else at the one that costs most."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.patterns import DtypeTime
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import float64_in_step
from perfkit.run.records import DOUBLES

MS = 1_000_000


def wide(line: int, ns: int, *, mixed: bool = False) -> DtypeTime:
    return DtypeTime(
        dtype="float64", ns=ns, count=9, mixed=mixed, at=Location(file="loss.py", line=line, function="forward")
    )


def test_the_line_where_float32_meets_float64_is_the_one_to_change(build: Any) -> None:
    patterns = build.patterns(step_ms=100, dtypes=(wide(40, 30 * MS), wide(23, 20 * MS, mixed=True)))

    [finding] = build.findings(float64_in_step, build.step(100), patterns)

    assert (finding.spent.file, finding.spent.line) == ("loss.py", 40)
    assert (finding.change.file, finding.change.line) == ("loss.py", 23)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (21 * MS, 40 * MS)


def test_where_everything_is_float64_the_line_that_costs_most_is_reported(build: Any) -> None:
    patterns = build.patterns(step_ms=100, dtypes=(wide(28, 60 * MS), wide(31, 5 * MS)))

    [finding] = build.findings(float64_in_step, build.step(100), patterns)

    assert finding.spent.line == 28


@pytest.mark.parametrize(
    ("op", "line", "severity"),
    [("linalg_cholesky", 28, "info"), ("linalg_cholesky", 40, "critical"), ("mm", 28, "critical")],
    ids=["in float64", "at a line without float64", "a product"],
)
def test_beside_a_factorization_it_is_information(op: str, line: int, severity: str, build: Any) -> None:
    patterns = build.patterns(step_ms=100, dtypes=(wide(28, 60 * MS),))
    at = Location(file="loss.py", line=line, function="forward")
    row = OpWorkTime(op=f"aten::{op}", phase="forward", ns=MS, calls=1, ops=1, at=at)

    [finding] = build.findings(
        float64_in_step, build.step(100), patterns, StepWork(source="x", step_ns=100 * MS, rows=(row,))
    )

    assert finding.severity == severity
    assert ("linalg_cholesky" in finding.advice) is (severity == "info")


def test_without_shapes_the_kernels_of_a_device_show_it(build: Any) -> None:
    kernels = build.kernels(("dgemm", "matmul", 500), ("sgemm", "matmul", 500), precisions=("float64", "float32"))
    device = build.device(1000, compute=1000)

    [finding] = build.findings(float64_in_step, build.traced_step(100), device, kernels)

    assert finding.saving_low_ns == 25 * MS


@pytest.mark.parametrize(
    ("name", "low_ms", "high_ms"),
    [("NVIDIA H200", 0, 25), ("Tesla T4", 25, 48.4375)],
    ids=["as fast as float32", "a thirty-second of it"],
)
def test_on_a_device_products_save_what_its_peaks_differ_by_and_memory_half(
    name: str, low_ms: float, high_ms: float, build: Any
) -> None:
    kernels = build.kernels(("dgemm", "matmul", 500), ("sgemm", "matmul", 500), precisions=("float64", "float32"))
    device = msgspec.structs.replace(build.device(1000, compute=1000), name=name)

    [finding] = build.findings(float64_in_step, build.traced_step(100), device, kernels)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (low_ms * MS, round(high_ms * MS))


def test_a_statistic_in_float64_is_not_reported(build: Any) -> None:
    patterns = build.patterns(step_ms=100, dtypes=(wide(28, 3 * MS),))

    assert build.findings(float64_in_step, build.step(100), patterns) == []
    assert build.findings(float64_in_step, build.step(100)) == []


def test_where_inputs_and_targets_come_from_numpy_and_all_is_float64_the_first_of_them_is_to_edit(build: Any) -> None:
    arrays = tuple(Location(file="fit.py", line=line, function="from_numpy(...)") for line in (24, 25))
    rank = msgspec.structs.replace(build.rank(), calls={"from_numpy": arrays})

    [everywhere] = build.findings(
        float64_in_step, build.step(100), build.patterns(step_ms=100, dtypes=(wide(40, 30 * MS),)), rank
    )
    assert everywhere.change == arrays[0]

    meets = build.patterns(step_ms=100, dtypes=(wide(40, 30 * MS), wide(23, 20 * MS, mixed=True)))
    [mixed] = build.findings(float64_in_step, build.step(100), meets, rank)
    assert mixed.change.line == 23


def test_of_several_arrays_the_one_is_to_edit_whose_tensor_is_a_double_while_the_program_trains(build: Any) -> None:
    arrays = tuple(Location(file="fit.py", line=line, function="from_numpy(...)") for line in (24, 25))
    rank = msgspec.structs.replace(build.rank(), calls={"from_numpy": arrays, DOUBLES: arrays[1:]})
    meets = build.patterns(step_ms=100, dtypes=(wide(40, 30 * MS), wide(23, 20 * MS, mixed=True)))

    [finding] = build.findings(float64_in_step, build.step(100), meets, rank)

    assert finding.change == arrays[1]
