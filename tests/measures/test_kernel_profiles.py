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

import msgspec
import pytest

import perfkit
from perfkit.measures.ncu.kernel_profiles import gaps_of, measure_kernel_profiles
from perfkit.measures.results.kernel_profiles import KernelProfile, Stall, short_name
from perfkit.reports.figures import figures_of
from perfkit.reports.kernel_profile_rows import CHANGE_COLUMNS, PROFILE_COLUMNS, aligned, change_rows, profile_rows
from perfkit.trace.nsight.ncu import Launch, LaunchRule, NcuReport

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


PIPE = "sm__{}.avg.pct_of_peak_sustained_active"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"


def test_caches_schedulers_and_divergence_are_means_by_time() -> None:
    metrics = {
        "l1tex__t_sector_hit_rate.pct": 77.6,
        "lts__t_sector_hit_rate.pct": 95.53,
        "sm__inst_executed.avg.per_cycle_active": 1.5,
        PIPE.format("instruction_throughput"): 40.0,
        "smsp__warps_eligible.avg.per_cycle_active": 0.5,
        "smsp__issue_inst0.avg.pct_of_peak_sustained_active": 72.94,
        "smsp__thread_inst_executed_per_inst_executed.ratio": 16.0,
        "smsp__inst_executed.sum": 90.0,
        "smsp__inst_issued.sum": 100.0,
    }
    row = profile(launch(30, **metrics), launch(10, **metrics | {"smsp__inst_executed.sum": 50.0}))

    assert (row.l1_hit, row.l2_hit, row.ipc) == (pytest.approx(0.776), pytest.approx(0.9553), pytest.approx(1.5))
    assert (row.sm_busy, row.eligible_warps) == (pytest.approx(0.4), pytest.approx(0.5))
    assert (row.no_eligible, row.threads_per_warp) == (pytest.approx(0.7294), pytest.approx(16))
    assert row.replay_share == pytest.approx((3 * 0.1 + 0.5) / 4)
    only_issuing = profile(launch(**{"smsp__issue_active.avg.pct_of_peak_sustained_active": 27.06}))
    assert only_issuing.no_eligible == pytest.approx(0.7294)


def test_a_pipe_counts_with_its_largest_number_and_the_sum_of_pipes_is_none_of_them() -> None:
    metrics = {
        PIPE.format("pipe_fma_cycles_active"): 20.0,
        PIPE.format("inst_executed_pipe_lsu"): 50.0,
        PIPE.format("pipe_shared_cycles_active"): 90.0,
        PIPE.format("pipe_tensor_cycles_active"): 30.0,
        PIPE.format("inst_executed_pipe_tensor_op_hmma"): 35.0,
        PIPE.format("inst_executed_pipe_xu"): 5.0,
    }
    row = profile(launch(**metrics))

    assert [(pipe.pipe, pipe.share) for pipe in row.pipes] == [("lsu", 0.5), ("tensor", 0.35), ("fma", 0.2)]
    assert row.tensor_pipe == 0.35
    assert profile(launch()).pipes == ()


def test_sectors_that_an_ideal_pattern_needs_are_those_in_use() -> None:
    total = {"memory_l2_theoretical_sectors_global": 800.0}
    counted = total | {"memory_l2_theoretical_sectors_global_ideal": 200.0}
    excess = total | {"derived__memory_l2_theoretical_sectors_global_excessive": 600.0}
    per_sector = {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 8.0}
    banks = {"memory_l1_wavefronts_shared": 300.0, "memory_l1_wavefronts_shared_ideal": 100.0}

    assert [profile(launch(**one)).sector_use for one in (counted, excess, per_sector)] == [0.25] * 3
    assert profile(launch(**banks)).conflict_share == pytest.approx(2 / 3)
    nonsense = total | {"memory_l2_theoretical_sectors_global_ideal": 900.0}
    assert (profile(launch(**nonsense)).sector_use, profile(launch()).conflict_share) == (None, None)


def test_the_advice_of_ncu_is_that_of_the_longest_launch_largest_estimate_first_without_information() -> None:
    def rule(name: str, kind: str = "OPT", scope: str | None = None, speedup: float | None = None) -> LaunchRule:
        return LaunchRule(name=name, section="S", kind=kind, text="Do it.", scope=scope, speedup_percent=speedup)

    rules = (rule("note", "INF"), rule("none"), rule("local", scope="local", speedup=81.25))
    rules = (*rules, rule("small", scope="global", speedup=5.0), rule("large", scope="global", speedup=50.0))
    long = msgspec.structs.replace(launch(30), rules=rules)
    short = msgspec.structs.replace(launch(10), rules=(rule("other", scope="global", speedup=90.0),))

    advice = profile(short, long).advice

    assert [(one.rule, one.saving_share, one.is_local) for one in advice] == [
        ("large", 0.5, False),
        ("small", 0.05, False),
        ("local", 0.8125, True),
        ("none", None, False),
    ]


def test_dram_bound_kernels_that_follow_each_other_are_a_chain_and_others_end_it() -> None:
    names = ["vectorized_elementwise_kernel<Add>", "vectorized_elementwise_kernel<Mul>", "reduce_kernel<512>"]
    order = [*names[:2], "ampere_sgemm_128x64_nn", *names[:2], names[2], names[0], names[1]]
    bound = {DRAM: 85.0, COMPUTE: 20.0}
    launches = [
        msgspec.structs.replace(launch(10, name, **bound), id=number + (100 if number > 5 else 0))
        for number, name in enumerate(order)
    ]
    launches[7] = msgspec.structs.replace(launches[7], metrics={**launches[7].metrics, DRAM: 30.0})
    profiles = measure_kernel_profiles(NcuReport(path=Path("r"), launches=tuple(launches), lost=()))

    # The product ends the first, a gap in the numbers of the report the second, and half-idle DRAM is no part of one.
    assert [(len(chain.kernels), chain.count, chain.total_ns) for chain in profiles.chains] == [
        (3, 1, 30_000),
        (2, 1, 20_000),
    ]
    assert profiles.chains[0].kernels == tuple(names)
    assert profiles.chains[0].share == pytest.approx(30 / 80)


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

    heading, wide = aligned(PROFILE_COLUMNS, profile_rows(profiles), 120)
    assert heading.split()[-4:] == ["limited", "by", "spills", "roof"]
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


def full_page(name: str, *, sectors: float, advice: bool = True) -> str:
    """A details page as of ncu 2025 with one launch of 100 us, next to the raw page with its work and its roof."""
    columns = '"ID","Process ID","Kernel Name","Stream","Block Size","Grid Size","Device","CC",'
    start = f'"0","7","{name}","7","(128, 1, 1)","(8, 1, 1)","0","9.0",'
    values = {
        TIME: 100_000.0,
        COMPUTE: 20.0,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 70.0,
        "lts__t_sector_hit_rate.pct": 80.0,
        "smsp__thread_inst_executed_per_inst_executed.ratio": 31.5,
        "smsp__issue_inst0.avg.pct_of_peak_sustained_active": 72.0,
        "memory_l2_theoretical_sectors_global": 800.0,
        "memory_l2_theoretical_sectors_global_ideal": sectors,
        **{FP32.format(op): 2e6 for op in ("add", "mul")},
        FP32.format("fma"): 3e6,
        "derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2": 10_000.0,
        **CYCLES,
        **MEMORY_ROOF,
        "dram__bytes.sum": 5e6,
    }
    names, numbers = (",".join(f'"{cell}"' for cell in cells) for cells in (values, values.values()))
    raw = f"{columns}{names}\n{start}{numbers}\n"
    details = f'{columns}"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type",'
    details += '"Rule Description","Estimated Speedup Type","Estimated Speedup"\n'
    rule = '"UncoalescedGlobalAccess","OPT","Excessive <b>sectors</b>.","global","41.81"'
    return f'{raw}{details}{start}"SourceCounters","","","",{rule}\n' if advice else raw


def test_the_page_of_a_report_has_a_roofline_of_its_kernels(tmp_path: Path) -> None:
    (tmp_path / "full.csv").write_text(full_page("strided(float *)", sectors=100.0))

    (roof,) = figures_of(perfkit.diagnose(tmp_path / "full.csv")).roofs

    (point,) = roof.points
    assert (roof.device, point.op) == ("device 0, kernels profiled by Nsight Compute", "strided")
    # 10 MFLOP in 100 us under a peak of 10 TFLOP/s; 5 MB in that time under 100 GB/s.
    assert (point.flops_per_s, point.bytes_per_s) == (pytest.approx(1e11), pytest.approx(5e10))
    assert roof.peaks == {"float32": pytest.approx(1e13)}
    assert (roof.bytes_per_s, point.bound, point.device_ns) == (pytest.approx(1e11), "memory", 100_000)
    assert (point.memory_share, roof.time_ns) == (pytest.approx(0.5), {"memory": 100_000})


def test_a_kernel_without_a_time_or_without_work_has_no_place_under_the_roof(reports: tuple[Path, Path]) -> None:
    assert figures_of(perfkit.diagnose(reports[0])).roofs == ()


def test_diagnose_of_a_full_report_repeats_ncus_advice_and_names_the_access_pattern(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "full.csv").write_text(full_page("strided(float *)", sectors=100.0))

    shown = " ".join(cli("diagnose", "full.csv", "--all").split())
    assert "strided takes 100% of the profiled time, and uses 12% of the sectors" in shown
    assert "Nsight Compute's rule UncoalescedGlobalAccess estimates to save 42%" in shown
    advice = json.loads(cli("diagnose", "full.csv", "--table", "kernel-advice", "--json"))
    assert "Excessive <b>sectors</b>." in json.dumps(advice)


def test_compare_has_the_access_pattern_and_the_caches_of_both_sides(tmp_path: Path) -> None:
    (tmp_path / "before.csv").write_text(full_page("strided(float *)", sectors=100.0))
    (tmp_path / "after.csv").write_text(full_page("strided(float *)", sectors=800.0, advice=False))

    compared = perfkit.compare(tmp_path / "before.csv", tmp_path / "after.csv")

    heading, row = aligned(CHANGE_COLUMNS, change_rows(compared.kernel_profiles), 160)
    assert heading.endswith("L2 hit   no elig   threads   sectors    tensor")
    assert row.split()[-5:] == ["80%→80%", "72%→72%", "31.5→31.5", "12%→100%", "-→-"]
    assert [finding.rule for finding in compared.gone] == ["uncoalesced-access"]


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
        "lts__t_sector_hit_rate.pct": 0.0,
        "smsp__issue_inst0.avg.pct_of_peak_sustained_active": 0.0,
        "smsp__thread_inst_executed_per_inst_executed.ratio": 32.0,
        PIPE.format("inst_executed_pipe_lsu"): 50.0,
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 8.0,
    }
    advice = (LaunchRule(name="CPIStall", section="WarpStateStats", kind="WRN", text="It waits."),)
    one = msgspec.structs.replace(launch(**full), rules=advice)

    assert gaps_of(measure_kernel_profiles(NcuReport(path=Path("r"), launches=(one,), lost=()))) == []
    (gap,) = gaps_of(measure_kernel_profiles(NcuReport(path=Path("r"), launches=(launch(**full),), lost=())))
    assert gap == "the report has no texts of ncu's rules (exported with --page details); ncu --set full collects all"
