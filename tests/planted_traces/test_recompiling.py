"""Compiling in several steps of a window, the last one included, recurs; compiling that has ended is first use."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_timeline import GEMM_BF16, Timeline

from perfkit.diagnosis import diagnose
from perfkit.measures.device.device_time import measure_device_time
from perfkit.trace import read_trace

LASTS_US = 30_000
DYNAMO = "torch/_dynamo/convert_frame.py(1633): _compile"


def causes(
    folder: Path, compiles: set[int], *, first: int = 0, count: int = 5, name: str = DYNAMO, lasts: float = LASTS_US
) -> dict[str, int]:
    """Idle time by cause where these steps compile."""
    line = Timeline(folder)
    line.number = first

    def step(line: Timeline) -> None:
        for _ in range(20):
            line.run(GEMM_BF16, 1_000)
        line.wait()
        if line.number in compiles:
            start = line.now
            line.spend(lasts)
            line.add("python_function" if ".py(" in name else "cpu_op", name, start, line.now)
        line.run(GEMM_BF16, 1_000)

    [device] = measure_device_time(read_trace(line.steps(step, count=count).write(), processes=1))
    return device.causes


@pytest.mark.parametrize(
    ("compiles", "first", "again"),
    [
        ({0, 1, 2, 3, 4}, 0, 4),
        ({1, 2, 4}, 0, 3),
        ({7, 9, 11}, 7, 3),
        # Two may be functions or sizes that are met for once.
        ({2, 4}, 0, 0),
        ({7, 11}, 7, 0),
        # What a program's first step compiles is compiled once in any case.
        ({0, 4}, 0, 0),
        # For the first length, and once for lengths that vary.
        ({0, 1}, 0, 0),
        # It has ended.
        ({7, 8, 9, 10}, 7, 0),
        ({11}, 7, 0),
        ({0}, 0, 0),
    ],
)
def test_compiling_recurs_in_at_least_three_steps_of_which_one_is_the_last(
    tmp_path: Path, compiles: set[int], first: int, again: int
) -> None:
    found = causes(tmp_path, compiles, first=first)

    assert found.get("recompiling", 0) == pytest.approx(again * LASTS_US * 1_000, rel=0.01)
    assert found.get("first use", 0) == pytest.approx((len(compiles) - again) * LASTS_US * 1_000, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "entire_frame_compile",
        "_compile.compile_inner (dynamo_timed)",
        "entire_backward_compile",
        "inductor_compile",
        "compile_fx.<locals>.bw_compiler",
        "torch/_inductor/compile_fx.py(929): _compile_fx_inner",
        "/venv/lib/python3.12/site-packages/torch/_dynamo/convert_frame.py(2522): __call__",
    ],
)
def test_names_of_compilers(tmp_path: Path, name: str) -> None:
    assert causes(tmp_path, {*range(5)}, name=name)["recompiling"] == pytest.approx(4 * LASTS_US * 1_000, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "TorchDynamo Cache Lookup",
        "Torch-Compiled Region: 0/0",
        "## Call CompiledFxGraph f3k ##",
        "torch/_inductor/compile_fx.py(1919): run",
        "torch/_inductor/output_code.py(612): __call__",
        "torch/_dynamo/eval_frame.py(736): compile_wrapper",
    ],
)
def test_names_of_what_runs_compiled_code(tmp_path: Path, name: str) -> None:
    found = causes(tmp_path, {*range(5)}, name=name)

    assert not found.keys() & {"recompiling", "first use"}


def test_what_dynamo_only_looks_at_does_not_recur(tmp_path: Path) -> None:
    assert "recompiling" not in causes(tmp_path, {*range(5)}, lasts=500)


def test_a_trace_alone_reports_recompiles_and_its_cost(tmp_path: Path) -> None:
    causes(tmp_path, {*range(7, 12)}, first=7)

    finding = next(one for one in diagnose(tmp_path / "t.json").findings if one.rule == "recompiles")

    assert finding.cost_ns == pytest.approx(LASTS_US * 1_000, rel=0.01)
    assert "in 5 of the 5 steps" in finding.message
