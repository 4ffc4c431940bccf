"""Kernels of a report of Nsight Compute in numbers, and what a user sees of them: table, page, comparison."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.measures.ncu.kernel_profiles import gaps_of, measure_kernel_profiles
from perfkit.measures.results.kernel_profiles import KernelProfile, Stall, short_name
from perfkit.reports.figures import figures_of
from perfkit.reports.kernel_profile_rows import PROFILE_COLUMNS, aligned, profile_rows
from perfkit.trace.nsight.ncu import Launch, NcuReport

TIME = "gpu__time_duration.sum"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
LIMIT = "launch__occupancy_limit_{}"
CYCLES = {"sm__cycles_elapsed.avg.per_second": 1e9, "smsp__cycles_elapsed.avg.per_second": 1e9}
MEMORY_ROOF = {"dram__bytes.sum.peak_sustained": 100.0, "dram__cycles_elapsed.avg.per_second": 1e9}
FP32 = "smsp__sass_thread_inst_executed_op_f{}_pred_on.sum"


def launch(us: float | None = 10.0, kernel: str = "gemm", count: int = 1, **metrics: float) -> Launch:
    """A launch of so many microseconds; metrics by their names."""
    times = {} if us is None else {TIME: us / 1e6}
    return Launch(
        id=0, process="7", kernel=kernel, device=0, stream=7, grid=(8, 1, 1), block=(256, 1, 1),
        compute_capability="9.0", metrics={**times, **metrics}, count=count,
    )  # fmt: skip


def profile(*launches: Launch) -> KernelProfile:
    """The longest kernel of these."""
    report = NcuReport(path=Path("r.csv"), launches=launches, lost=())
    return measure_kernel_profiles(report).rows[0]


def test_launches_of_a_kernel_are_weighed_by_their_time() -> None:
    row = profile(launch(30, **{COMPUTE: 10.0}), launch(10, **{COMPUTE: 50.0}))

    assert (row.launches, row.total_ns, row.mean_ns, row.share) == (2, 40_000, 20_000, 1.0)
    assert row.compute == pytest.approx(0.20)
    assert (row.memory, row.occupancy, row.registers, row.roof, row.stalls) == (None, None, None, None, ())


def test_a_mean_over_launches_counts_for_all_of_them() -> None:
    row = profile(launch(10, count=14), launch(10))

    assert (row.launches, row.total_ns) == (15, 150_000)


def test_a_report_without_times_counts_launches_and_reports_that() -> None:
    report = NcuReport(path=Path("r.csv"), launches=(launch(None), launch(None), launch(None, "relu")), lost=())
    profiles = measure_kernel_profiles(report)

    assert [(row.name, row.share, row.total_ns) for row in profiles.rows] == [
        ("gemm", pytest.approx(2 / 3), None),
        ("relu", pytest.approx(1 / 3), None),
    ]
    assert "no times, so kernels count by their launches" in gaps_of(profiles)[0]


def test_occupancy_is_limited_by_what_allows_the_fewest_blocks() -> None:
    limits = {LIMIT.format("registers"): 1.0, LIMIT.format("shared_mem"): 1.0, LIMIT.format("warps"): 5.0}
    few, full = {"sm__maximum_warps_per_active_cycle_pct": 18.75}, {"sm__maximum_warps_per_active_cycle_pct": 100.0}

    assert profile(launch(**limits, **few)).limiters == ("registers", "shared memory")
    assert profile(launch(**limits, **full)).limiters == ()


def test_stalls_are_parts_of_the_time_between_instructions_and_the_issuing_warp_is_none() -> None:
    reasons = {"long_scoreboard": 6.0, "barrier": 2.0, "wait": 1.0, "selected": 1.0, "long_scoreboard_pipe_l1tex": 6.0}
    row = profile(launch(**{STALLED.format(name): value for name, value in reasons.items()}))

    assert row.stalls == (Stall("long_scoreboard", 0.6), Stall("barrier", 0.2), Stall("wait", 0.1))


def test_a_few_stalls_without_their_whole_are_ordered_but_have_no_share() -> None:
    row = profile(launch(**{STALLED.format("barrier"): 2.0, STALLED.format("wait"): 3.0}))

    assert row.stalls == (Stall("wait", None), Stall("barrier", None))


def test_samples_of_stalls_are_used_where_no_exact_numbers_are() -> None:
    samples = {"barrier": 10.0, "selected": 10.0, "wait": 30.0, "wait_not_issued": 25.0}
    row = profile(launch(**{f"smsp__pcsamp_warps_issue_stalled_{name}": value for name, value in samples.items()}))

    assert row.stalls == (Stall("wait", 0.6), Stall("barrier", 0.2))


def test_the_roofline_counts_an_fma_twice_and_knows_the_roof_at_its_intensity() -> None:
    work = {FP32.format("add"): 1e6, FP32.format("mul"): 1e6, FP32.format("fma"): 4e6}
    peak = {"derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2": 10_000.0}
    row = profile(launch(10, **work, **peak, **CYCLES, **MEMORY_ROOF, **{"dram__bytes.sum": 5e5}))

    assert row.roof is not None
    # 10 MFLOP in 10 µs are 1 TFLOP/s; 0.5 MB in that time 50 GB/s of 100; 20 FLOP/B below the ridge at 100.
    assert (row.roof.flops_per_s, row.roof.bytes_per_s) == (pytest.approx(1e12), pytest.approx(5e10))
    assert (row.roof.intensity, row.roof.bound, row.roof.precision) == (pytest.approx(20), "memory", "float32")
    assert row.roof.roof_share == pytest.approx(0.5)


def test_rates_per_cycle_of_the_raw_page_give_the_same_work_as_counts() -> None:
    rates = {FP32.format(op) + ".per_cycle_elapsed": 100.0 for op in ("add", "mul")}
    twice = {"derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2": 800.0}
    row = profile(launch(10, **rates, **twice, **CYCLES, **{"dram__bytes.sum.per_second": 5e10}))

    assert row.roof is not None
    assert (row.roof.flops_per_s, row.roof.roof_share, row.roof.bound) == (pytest.approx(1e12), None, "unknown")


def test_work_of_tensor_cores_that_was_not_counted_leaves_the_roofline_empty() -> None:
    work = {FP32.format(op): 1e6 for op in ("add", "mul", "fma")} | {"dram__bytes.sum": 5e5}
    busy = {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 40.0}
    path = "sm__ops_path_tensor_src_bf16_dst_fp32"
    counted = {f"{path}.sum": 1e9, f"{path}_sparsity_off.sum": 1e9}

    assert profile(launch(**work, **busy)).roof is None
    roof = profile(launch(10, **work, **busy, **counted)).roof
    assert roof is not None
    assert (roof.precision, roof.flops_per_s) == ("tensor cores", pytest.approx(1e14 + 4e11))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("row_sum(const float *, int)", "row_sum"),
        ("void at::native::reduce_kernel<512, at::native::Sum<float>>(T3)", "reduce_kernel<512, Sum<float>>"),
        ("void (anonymous namespace)::fill<int>(int *)", "fill<int>"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("(", "("),
    ],
)
def test_a_short_name_keeps_what_distinguishes_kernels(name: str, short: str) -> None:
    assert short_name(name) == short


# -- from the file to the user


def test_a_wide_terminal_has_the_limiter_of_the_occupancy_the_spills_and_the_place_below_the_roof() -> None:
    work = {FP32.format(op): 2e6 for op in ("add", "mul")} | {FP32.format("fma"): 3e6}
    peak = {"derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2": 10_000.0}
    moved = {"dram__bytes.sum": 5e5, "derived__local_spilling_requests": 4096.0}
    limits = {LIMIT.format("registers"): 2.0, LIMIT.format("warps"): 8.0}
    row = launch(10, **work, **peak, **moved, **limits, **CYCLES, **MEMORY_ROOF)
    profiles = measure_kernel_profiles(NcuReport(path=Path("r.csv"), launches=(row,), lost=()))

    assert [heading for heading, _ in PROFILE_COLUMNS][-3:] == ["limited by", "spills", "roof"]
    (wide,) = aligned(PROFILE_COLUMNS, profile_rows(profiles), 120)[1:]
    assert wide.split()[-3:] == ["registers", "4,096", "50%"]
    (narrow,) = aligned(PROFILE_COLUMNS, profile_rows(profiles), 80)[1:]
    assert "registers" not in narrow


LABELS = ("Duration", "Compute (SM) Throughput", "Memory Throughput", "DRAM Throughput", "Registers Per Thread")
UNITS = ("us", "%", "%", "%", "register/thread")


def table(*launches: tuple[str, str, tuple[float, ...]]) -> str:
    """A details page of launches: kernel, grid, and values for `LABELS`."""
    lines = ['"ID","Process ID","Kernel Name","Stream","Block Size","Grid Size","Device","CC","Section Name",']
    lines[0] += '"Metric Name","Metric Unit","Metric Value"'
    for number, (kernel, grid, values) in enumerate(launches):
        for label, unit, value in zip(LABELS, UNITS, values, strict=True):
            lines.append(
                f'"{number}","7","{kernel}","7","(128, 1, 1)","{grid}","0","9.0","S","{label}","{unit}","{value:,}"'
            )
    return "\n".join(lines) + "\n"


SLOW = ("void my::transpose<float>(float *)", "(64, 1, 1)", (1400.0, 12.0, 15.0, 5.0, 168))
FAST = ("void my::transpose<float>(float *)", "(512, 1, 1)", (600.0, 35.0, 85.0, 84.0, 64))
SAME = ("gemm", "(512, 1, 1)", (900.0, 82.0, 55.0, 30.0, 240))


@pytest.fixture
def reports(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "before.csv").write_text(table(SLOW, SLOW, SAME))
    (tmp_path / "after.csv").write_text(table(FAST, FAST, SAME))
    return tmp_path / "before.csv", tmp_path / "after.csv"


Cli = Callable[..., str]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "perfkit", *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
        )
        return done.stdout

    return run


def test_diagnose_of_a_report_gives_the_verdict_the_table_and_the_findings(
    reports: tuple[Path, Path], cli: Cli
) -> None:
    shown = cli("diagnose", "before.csv")

    assert "2 kernels in 3 launches of 3.7 ms in total, most of the time in transpose" in shown.replace("\n", " ")
    assert "transpose<float>                 2   1.4 ms   76%     12%    15%   5%     -  168" in shown
    assert "latency-bound-kernel" in shown
    assert "register-pressure" in shown
    assert "Cannot tell" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_diagnose_of_a_report_as_data_has_every_kernel(reports: tuple[Path, Path], cli: Cli) -> None:
    answer: dict[str, Any] = json.loads(cli("diagnose", "before.csv", "--json"))

    first = answer["figures"]["kernel_profiles"]["rows"][0]
    assert (first["name"], first["grid"], first["registers"]) == (SLOW[0], [64, 1, 1], 168)
    assert (first["compute"], first["occupancy"]) == (0.12, None)
    assert {finding["cost_ns"] for finding in answer["findings"]} == {None}
    headings = re.findall(r"^### \d+\. (\S+)", cli("diagnose", "before.csv", "--markdown"), re.MULTILINE)
    assert headings == [finding["rule"] for finding in answer["findings"]]
    assert "register-pressure" in headings


def test_the_page_of_a_report_has_a_table_to_sort(reports: tuple[Path, Path], cli: Cli, tmp_path: Path) -> None:
    cli("diagnose", "before.csv", "--html")

    assert "kernel-profiles" in (tmp_path / "before.html").read_text()
    (shown,) = figures_of(perfkit.diagnose(reports[0])).tables
    assert (shown.id, shown.title) == ("kernel-profiles", "Kernel profiles")
    assert [column.label for column in shown.columns][:4] == ["kernel", "launches", "total", "each"]
    assert shown.rows[0][:3] == (SLOW[0], 2, 2_800_000)


def test_numbers_that_no_kernel_has_reach_neither_the_table_nor_break_it(tmp_path: Path) -> None:
    wild = ("wild", "(9999999999, 9999999999, 1)", (1e17, 9e17, 1e17, 9e17, 9e17))
    (tmp_path / "wild.csv").write_text(table(wild, SAME))

    answer = perfkit.diagnose(tmp_path / "wild.csv")

    assert answer.figures.kernel_profiles is not None
    assert {row.name: row.total_ns for row in answer.figures.kernel_profiles.rows} == {"gemm": 900_000, "wild": None}
    assert json.loads(answer.to_json())["source"].endswith("wild.csv")
    assert json.loads(figures_of(answer).to_json())["tables"]


def test_compare_sets_the_kernels_of_two_reports_side_by_side(reports: tuple[Path, Path], cli: Cli) -> None:
    shown = cli("compare", "before.csv", "after.csv")

    assert "The 2 kernels that both profiled take 3.7 ms before, 2.1 ms after (-43%)" in shown
    assert "transpose<float>       1.4 ms  600 µs   -57%  12%→35%  15%→85%      -→-   168→64" in shown
    assert "no longer found: latency-bound-kernel  transpose<float>" in shown
    assert "marks no steps" not in shown


def test_kernels_are_matched_by_their_grid_first_and_then_by_name(reports: tuple[Path, Path], tmp_path: Path) -> None:
    small = (SLOW[0], "(1, 1, 1)", (5.0, 1.0, 1.0, 1.0, 168))
    (tmp_path / "both.csv").write_text(table(small, SLOW, ("new", "(1, 1, 1)", SAME[2])))

    changes = perfkit.compare(reports[0], tmp_path / "both.csv").kernel_profiles

    told = {(one.before.grid if one.before else None, one.after.grid if one.after else None) for one in changes}
    assert told == {((64, 1, 1), (64, 1, 1)), ((512, 1, 1), None), (None, (1, 1, 1))}
    assert sorted(one.changed for one in changes) == ["+0%", "new", "new", "removed"]


def test_a_report_and_a_trace_cannot_be_compared_and_the_verdict_has_the_reason(
    reports: tuple[Path, Path], tmp_path: Path
) -> None:
    event = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 5, "pid": 1, "tid": 1}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event]}))

    verdict = perfkit.compare(reports[0], tmp_path / "trace.json").verdict

    assert verdict == "The two cannot be compared: one is a report of Nsight Compute, the other is not."


def test_a_report_with_every_section_has_no_gaps() -> None:
    full = {
        COMPUTE: 50.0,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 40.0,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 40.0,
        "launch__registers_per_thread": 32.0,
        STALLED.format("wait"): 1.0,
        **{FP32.format(op): 1e6 for op in ("add", "mul", "fma")},
        "dram__bytes.sum": 5e5,
    }

    assert gaps_of(measure_kernel_profiles(NcuReport(path=Path("r"), launches=(launch(**full),), lost=()))) == []
