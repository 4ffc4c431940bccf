"""CSV exports of Nsight Compute: generated in the forms of its pages, versions and locales, whole and damaged."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.errors import TraceError
from perfkit.trace.nsight import _ncu_tables
from perfkit.trace.nsight.ncu import NcuReport, is_ncu, read_ncu

HEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
LAUNCH = ["Block Size", "Grid Size", "Device", "CC"]
DETAILS = ["Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type", "Rule Description"]
TIME = "gpu__time_duration.sum"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
RATE = "dram__bytes.sum.per_second"
REGISTERS = "launch__registers_per_thread"

#: metric -> its label on the details page.
LABELS = {
    TIME: ("GPU Speed Of Light Throughput", "Duration"),
    COMPUTE: ("GPU Speed Of Light Throughput", "Compute (SM) Throughput"),
    MEMORY: ("GPU Speed Of Light Throughput", "Memory Throughput"),
    RATE: ("Memory Workload Analysis", "Memory Throughput"),
    REGISTERS: ("Launch Statistics", "Registers Per Thread"),
}
#: metric -> units it is printed in, by what a base value (seconds, bytes per second) is divided by.
UNITS = {
    TIME: {"ns": 1e-9, "us": 1e-6, "usecond": 1e-6, "msecond": 1e-3},
    COMPUTE: {"%": 1.0},
    MEMORY: {"%": 1.0},
    RATE: {"byte/second": 1.0, "Gbyte/second": 1e9, "Mbyte/s": 1e6},
    REGISTERS: {"register/thread": 1.0},
}


def cells(number: int, kernel: str, grid: tuple[int, int, int] = (8, 1, 1)) -> list[object]:
    """What stands before the metrics of a launch."""
    return [number, 77, "python", "127.0.0.1", kernel, 1, 7, "(256, 1, 1)", f"({', '.join(map(str, grid))})", 0, "9.0"]


def written(rows: list[list[Any]], before: str = "", delimiter: str = ",") -> str:
    out = io.StringIO(newline="")
    out.write(before)
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n", delimiter=delimiter).writerows(rows)
    return out.getvalue()


def details(*launches: tuple[str, list[tuple[str, str, str]]]) -> str:
    """A details page; each metric as (name or label, unit, value)."""
    rows: list[list[Any]] = [[*HEAD, *LAUNCH, *DETAILS]]
    for number, (kernel, metrics) in enumerate(launches):
        rows += [[*cells(number, kernel), "Section", name, unit, value, "", "", ""] for name, unit, value in metrics]
        rows.append([*cells(number, kernel), "SpeedOfLight", "", "", "", "SOLBottleneck", "OPT", "Some advice."])
    return written(rows)


def saved(tmp_path: Path, text: str | bytes, name: str = "report.csv") -> Path:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def read(tmp_path: Path, text: str | bytes, name: str = "report.csv") -> NcuReport:
    return read_ncu(saved(tmp_path, text, name))


def spelled(value: float, comma: bool) -> str:
    text = f"{value:,.9f}"
    return text.translate(str.maketrans(",.", ".,")) if comma else text


launches = st.lists(
    st.tuples(
        st.sampled_from(["gemm", "void at::native::reduce_kernel<512, 1>(T3)", 'with "quotes", and commas']),
        st.fixed_dictionaries(
            {
                TIME: st.integers(1, 10**10).map(lambda ns: ns / 1e9),
                COMPUTE: st.integers(0, 10_000).map(lambda part: part / 100),
                MEMORY: st.integers(0, 10_000).map(lambda part: part / 100),
                RATE: st.integers(10**6, 4 * 10**12).map(float),
                REGISTERS: st.integers(16, 255),
            }
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=launches, page=st.sampled_from(["raw", "details"]), comma=st.booleans(), data=st.data())
def test_both_pages_give_back_the_numbers_in_any_unit_and_locale(
    table: list[tuple[str, dict[str, float]]], page: str, comma: bool, data: st.DataObject, tmp_path: Path
) -> None:
    rows: list[list[Any]] = []
    if page == "raw":
        units = {metric: data.draw(st.sampled_from(sorted(UNITS[metric]))) for metric in UNITS}
        rows = [[*HEAD, *LAUNCH, *units], [*[""] * 11, *units.values()]]
        rows += [
            [*cells(n, kernel), *(spelled(values[m] / UNITS[m][u], comma) for m, u in units.items())]
            for n, (kernel, values) in enumerate(table)
        ]
    else:
        rows = [[*HEAD, *LAUNCH, *DETAILS]]
        for n, (kernel, values) in enumerate(table):
            for metric, value in values.items():
                unit = data.draw(st.sampled_from(sorted(UNITS[metric])))
                text = spelled(value / UNITS[metric][unit], comma)
                rows.append([*cells(n, kernel), *LABELS[metric], unit, text, "", "", ""])

    report = read(tmp_path, written(rows, before="==PROF== Connected to process 77\n"))

    assert [launch.kernel for launch in report.launches] == [kernel for kernel, _ in table]
    for launch, (_, values) in zip(report.launches, table, strict=True):
        assert launch.metrics == pytest.approx(values, rel=1e-6, abs=1e-9)
        assert (launch.grid, launch.block, launch.stream) == ((8, 1, 1), (256, 1, 1), 7)
    assert report.lost == ()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_gives_numbers_or_a_clear_error_and_nothing_else(data: st.DataObject, tmp_path: Path) -> None:
    whole = details(
        ("gemm", [("Duration", "us", "1,234.5"), (COMPUTE, "%", "12.5")]),
        ("relu", [("Duration", "ns", "900"), ("Grid Size", "", "8")]),
    ).encode()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8))
        if not damaged:
            damaged += b"x"
    packed = gzip.compress(bytes(damaged)) if data.draw(st.booleans()) else bytes(damaged)
    file = saved(tmp_path, packed[: data.draw(st.integers(1, len(packed)))])

    try:
        launches = read_ncu(file).launches
    except TraceError:
        return
    assert launches
    assert all(math.isfinite(value) for launch in launches for value in launch.metrics.values())


def test_labels_of_2020_and_of_today_and_names_next_to_labels_are_the_same_metrics(tmp_path: Path) -> None:
    old = [("SM [%]", "%", "18.70"), ("Memory [%]", "%", "40.07"), ("SOL FB", "%", "40.07"), ("SOL L2", "%", "11.91")]
    new = [("Compute (SM) Throughput", "%", "18.70"), ("Memory Throughput", "%", "40.07"), ("Stall Wait", "inst", "2")]
    both = [(f"Compute (SM) Throughput ({COMPUTE})", "%", "18.70"), (MEMORY, "%", "40.07")]

    report = read(tmp_path, details(("a", old), ("b", new), ("c", both)))

    first, second, third = (launch.metrics for launch in report.launches)
    assert first["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"] == 40.07
    assert {first[COMPUTE], second[COMPUTE], third[COMPUTE]} == {18.7}
    assert {first[MEMORY], second[MEMORY], third[MEMORY]} == {40.07}
    assert second["smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"] == 2


def test_an_export_of_2020_has_its_sizes_in_metrics_and_rows_of_unequal_length_are_whole(tmp_path: Path) -> None:
    header = written([[*HEAD[:5], "Kernel Time", "Context", "Stream", *DETAILS]])
    start = '"0","5","a.out","h","flux","2020-Apr-09 15:38:19","1","7","Launch Statistics"'
    rows = f'{start},"Block Size","","192",\n{start},"Grid Size","","506"\n{start},"Duration","nsecond","10720"\n'

    (launch,) = read(tmp_path, header + rows, "nsight.log").launches

    assert (launch.grid, launch.block, launch.device) == ((506, 1, 1), (192, 1, 1), None)
    assert launch.metrics[TIME] == pytest.approx(10.72e-6)


def test_what_the_program_printed_and_a_second_process_stand_between_the_tables(tmp_path: Path) -> None:
    one = details(("gemm", [("Duration", "us", "1.5")]))
    text = f'epoch 1, loss 0.5\nsaid "hi"\n==PROF== Connected to process 77\n{one}==PROF== Disconnected\n{one}'

    report = read(tmp_path, text, "train.log")

    assert [launch.metrics[TIME] for launch in report.launches] == [pytest.approx(1.5e-6)] * 2


def test_values_that_ncu_could_not_measure_are_absent_and_not_zero(tmp_path: Path) -> None:
    report = read(
        tmp_path, details(("gemm", [("Duration", "us", "1.50"), (COMPUTE, "%", "n/a"), (MEMORY, "", "-nan")]))
    )

    assert list(report.launches[0].metrics) == [TIME]
    assert report.lost == ()


def test_a_summary_over_launches_counts_them(tmp_path: Path) -> None:
    head = ["Process ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC", "Invocations", "Section Name"]
    head += ["Metric Name", "Metric Unit", "Minimum", "Maximum", "Average"]
    start = ["77", "gemm", "(128, 1, 1)", "(96, 1, 1)", "0", "11.0", "14"]
    rows = [head, [*start, "Occupancy", "Achieved Occupancy", "%", "73.56", "79.38", "74.92"]]

    (launch,) = read(tmp_path, written(rows)).launches

    assert (launch.count, launch.compute_capability) == (14, "11.0")
    assert list(launch.metrics.values()) == [74.92]


def test_the_stall_that_ncus_own_rule_names_is_read_from_its_text(tmp_path: Path) -> None:
    description = (
        "On average, each warp spends 8.4 cycles being stalled waiting for sibling warps at a CTA barrier."
        " This stall type represents about 42.8% of the total average of 23.2 cycles between issuing two instructions."
    )
    rule = ["WarpStateStats", "", "", "", "CPIStall", "OPT", description]

    (launch,) = read(tmp_path, written([[*HEAD, *LAUNCH, *DETAILS], [*cells(0, "softmax"), *rule]])).launches

    assert launch.metrics == {"smsp__warp_issue_stalled_barrier_per_warp_active.pct": 42.8}


def test_files_from_powershell_and_from_spreadsheets_are_read(tmp_path: Path) -> None:
    text = details(("gemm", [("Duration", "us", "1.50")]))
    semicolons = written(list(csv.reader(io.StringIO(text))), delimiter=";")

    assert read(tmp_path, text.replace("\n", "\r\n").encode("utf-16")).launches[0].metrics[TIME] == 1.5e-6
    assert read(tmp_path, semicolons).launches[0].metrics[TIME] == 1.5e-6


def test_a_file_cut_in_a_row_loses_that_row_and_reports_it(tmp_path: Path) -> None:
    text = details(("gemm", [("Duration", "us", "1.50"), (REGISTERS, "register/thread", "168")]))
    cut = text[: text.index('168"') + 2]

    report = read(tmp_path, cut)

    assert list(report.launches[0].metrics) == [TIME]
    assert "ends in the middle of a row" in " ".join(report.lost)


def test_a_gzip_file_cut_short_gives_the_launches_before_the_cut(tmp_path: Path) -> None:
    many = details(*((f"kernel{n}", [("Duration", "us", f"{n}.25")]) for n in range(3000)))
    packed = gzip.compress(many.encode())

    report = read(tmp_path, packed[: len(packed) // 2], "report.csv.gz")

    assert 100 < len(report.launches) < 3000
    assert any("gzip stream is cut" in sentence for sentence in report.lost)


def test_fields_without_an_end_and_rows_of_wrong_length_are_counted_and_the_others_read(tmp_path: Path) -> None:
    good = details(("gemm", [("Duration", "us", "1.50")]))
    row = good.splitlines()[1]
    bad = f'not, a, row\n"2","x"\n"1","77\n"3","{"y" * 200_000}\n'

    report = read(tmp_path, f"{good}{bad}{row.replace('gemm', 'relu')}\n")

    assert [launch.kernel for launch in report.launches] == ["gemm", "relu"]
    assert "do not fit their table" in report.lost[0]


def test_numbers_that_are_none_are_reported_with_their_metric(tmp_path: Path) -> None:
    report = read(tmp_path, details(("gemm", [("Duration", "us", "1.50"), (COMPUTE, "%", "twelve")])))

    assert report.lost == (f"{COMPUTE}: 1 of its values is not a number",)


def test_launches_beyond_the_maximum_are_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ncu_tables, "_MAX_VALUES", 300)

    report = read(tmp_path, details(*((f"kernel{n}", [("Duration", "us", f"{n}.25")]) for n in range(200))))

    assert 5 < len(report.launches) < 50
    assert f"only the first {len(report.launches)} launches were read" in report.lost[0]


#: Labels of the details page with the metric that the raw page has in their place: the sections Compute Workload
#: Analysis, Memory Workload Analysis, Scheduler, Warp State and Instruction Statistics, and the breakdown of pipes.
SECTIONS = {
    "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
    "SM Busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
    "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
    "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Issued Instructions": "smsp__inst_issued.sum",
    "LSU": "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
    "Tensor (FP)": "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
}
#: Metrics of Source Counters and of the memory tables, which the details page does not have.
RAW_ONLY = (
    "memory_l2_theoretical_sectors_global",
    "memory_l2_theoretical_sectors_global_ideal",
    "derived__memory_l1_wavefronts_shared_excessive",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
)
RULE_COLUMNS = ["Estimated Speedup Type", "Estimated Speedup"]


def test_every_section_has_the_same_metrics_on_the_details_page_and_on_the_raw_page(tmp_path: Path) -> None:
    numbers = {metric: 10.0 + at for at, metric in enumerate([*SECTIONS.values(), *RAW_ONLY])}
    by_label = [(label, "%", str(numbers[metric])) for label, metric in SECTIONS.items()]
    wide = [[*HEAD, *LAUNCH, *numbers], [""] * (11 + len(numbers)), [*cells(0, "gemm"), *numbers.values()]]

    (labelled,) = read(tmp_path, details(("gemm", by_label))).launches
    (named,) = read(tmp_path, written(wide)).launches

    assert labelled.metrics == {metric: numbers[metric] for metric in SECTIONS.values()}
    assert named.metrics == numbers


def rule_row(name: str, kind: str, text: str, *speedup: str, section: str = "Section", launch: int = 0) -> list[Any]:
    return [*cells(launch, "gemm"), section, "", "", "", name, kind, text, *speedup]


def test_ncus_own_rules_are_read_with_their_estimated_speedup_and_its_scope(tmp_path: Path) -> None:
    """Columns, kinds, scopes and figures as ncu 2025 wrote them on a B200: microsoft/superbenchmark at 81e060d,
    tests/benchmarks/micro_benchmarks/test_cublaslt_function.py. There rows of metrics end before the rules."""
    rows = [
        [*HEAD, *LAUNCH, *DETAILS, *RULE_COLUMNS],
        [*cells(0, "gemm"), "GPU Speed Of Light Throughput", "Duration", "ns", "406240", ""],
        rule_row("SOLBottleneck", "OPT", "Latency.", "", "", section="SpeedOfLight"),
        rule_row("LaunchConfiguration", "OPT", "A partial wave.", "global", "50", section="LaunchStats"),
        rule_row("TheoreticalOccupancy", "OPT", "Registers, shared memory.", "local", "81.25", section="Occupancy"),
    ]

    (launch,) = read(tmp_path, written(rows)).launches

    assert launch.metrics == {TIME: pytest.approx(406.24e-6)}
    assert [(rule.name, rule.section, rule.scope, rule.speedup_percent) for rule in launch.rules] == [
        ("SOLBottleneck", "SpeedOfLight", None, None),
        ("LaunchConfiguration", "LaunchStats", "global", 50.0),
        ("TheoreticalOccupancy", "Occupancy", "local", 81.25),
    ]
    assert launch.rules[1].text == "A partial wave."


def test_rules_without_speedups_and_with_impossible_ones_keep_their_text(tmp_path: Path) -> None:
    old = [[*HEAD, *LAUNCH, *DETAILS], rule_row("CPIStall", "WRN", "Waits."), rule_row("CPIStall", "WRN", "Waits.")]
    odd = [[*HEAD, *LAUNCH, *DETAILS, *RULE_COLUMNS]]
    odd += [
        rule_row("A", "OPT", text, "global", speedup) for text, speedup in (("x", "many"), ("y", "-3"), ("z", "1e9"))
    ]

    (before,) = read(tmp_path, written(old)).launches
    (after,) = read(tmp_path, written(odd)).launches

    assert [(rule.text, rule.kind, rule.speedup_percent) for rule in before.rules] == [("Waits.", "WRN", None)]
    assert [(rule.text, rule.speedup_percent) for rule in after.rules] == [("x", None), ("y", None), ("z", None)]


def test_the_raw_and_the_details_page_of_one_report_are_its_launches_once(tmp_path: Path) -> None:
    raw = written([[*HEAD, *LAUNCH, TIME], [*[""] * 11, "us"], [*cells(0, "gemm"), "1.5"], [*cells(1, "gemm"), "2.5"]])
    page = [[*HEAD, *LAUNCH, *DETAILS, *RULE_COLUMNS]]
    page += [[*cells(n, "gemm"), *LABELS[TIME], "us", "1.50", "", "", ""] for n in (0, 1)]
    page.append(rule_row("Second", "OPT", "Fuse.", "global", "12.5", launch=1))

    first, second = read(tmp_path, raw + written(page)).launches

    assert [one.metrics[TIME] for one in (first, second)] == [pytest.approx(1.5e-6), pytest.approx(2.5e-6)]
    assert (first.rules, [rule.name for rule in second.rules]) == ((), ["Second"])


def test_rules_without_end_are_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ncu_tables, "_MAX_VALUES", 300)
    rules = [rule_row(f"Rule{n}", "OPT", f"Text {n}.", "global", "5") for n in range(2000)]

    report = read(tmp_path, written([[*HEAD, *LAUNCH, *DETAILS, *RULE_COLUMNS], *rules]))

    assert 10 < len(report.launches[0].rules) < 300
    assert "later rows were skipped" in report.lost[0]


def test_a_page_of_rules_cut_in_the_middle_keeps_the_rules_before_the_cut(tmp_path: Path) -> None:
    rules = [rule_row("A", "OPT", "x", "global", "5"), rule_row("B", "OPT", "y, z", "global", "9")]
    text = written([[*HEAD, *LAUNCH, *DETAILS, *RULE_COLUMNS], *rules])

    report = read(tmp_path, text[: text.index("y, z") + 2])

    assert [rule.name for rule in report.launches[0].rules] == ["A"]
    assert "ends in the middle of a row" in " ".join(report.lost)


def test_a_report_with_names_of_an_unknown_version_has_its_launches_and_says_so(tmp_path: Path) -> None:
    new = [[*HEAD, *LAUNCH, "sm2__new.avg", "sm2__newer.avg"], [*cells(0, "gemm"), "1", "2"]]
    known = details(("gemm", [("Warp Shine", "%", "3.5"), ("Duration", "us", "1.5")]))

    (only,) = read(tmp_path, written(new)).lost
    assert "none of its metrics is known here (sm2__new.avg, sm2__newer.avg, ...)" in only
    assert "--page raw" in only
    (labelled,) = read(tmp_path, details(("gemm", [("Warp Shine", "%", "3.5")]))).launches
    assert (labelled.kernel, labelled.metrics) == ("gemm", {})
    assert read(tmp_path, known).lost == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", "is empty"),
        (b"a,b\n1,2\n", r"has no table of Nsight Compute.*--page raw --csv"),
        (bytes(range(256)) * 40, "has no table of Nsight Compute"),
        (b"x" * (5 << 20), "has no table of Nsight Compute"),
        (b'"Time (%)","Total Time (ns)","Instances","Name"\n"9","1","1","gemm"\n', "is a table of nsys stats"),
        (b'"Kernel Name","gemm"\n"#","Address","Source"\n', "has no table of Nsight Compute"),
        (details().encode(), "without a launch: no kernel was profiled"),
        (b"==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ncu reported: ERR_NVGPUCTRPERM"),
    ],
    ids=["empty", "other table", "binary", "one line", "nsys stats", "source page", "no launch", "no permission"],
)
def test_what_is_no_report_is_refused_with_what_it_is(tmp_path: Path, text: bytes, error: str) -> None:
    with pytest.raises(TraceError, match=error):
        read(tmp_path, text)


def test_a_report_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    table = details(("gemm", [("Duration", "us", "1.50")]))
    trace = json.dumps({"traceEvents": [{"name": "Kernel Name"}]})

    assert is_ncu(saved(tmp_path, f"training\n{table}", "train.log"))
    assert is_ncu(saved(tmp_path, gzip.compress(table.encode()), "r.csv.gz"))
    assert is_ncu(tmp_path / "r.ncu-rep")
    assert not is_ncu(saved(tmp_path, trace, "trace.json"))
    assert not is_ncu(saved(tmp_path, b"SQLite format 3\0Kernel Name", "r.sqlite"))
    assert not is_ncu(tmp_path / "missing")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report whose name has a space and looks like an option; no ncu is installed."""
    monkeypatch.delenv("PERFKIT_NCU", raising=False)
    monkeypatch.setenv("PATH", "")
    (tmp_path / "runs").mkdir()
    return saved(tmp_path / "runs", b"closed format", "--a run.ncu-rep")


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script in the place of ncu."""
    file = tmp_path / "ncu"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PERFKIT_NCU", str(file))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def test_ncus_own_report_is_exported_by_ncu_and_nothing_is_left_next_to_it(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, details(("gemm", [("Duration", "us", "1.50")])), "ready.csv")
    program(tmp_path, monkeypatch, f'echo "$*" >> {tmp_path}/calls; cat {tmp_path}/ready.csv')

    read_back = read_ncu(report)

    assert (read_back.path, read_back.launches[0].kernel) == (report, "gemm")
    calls = (tmp_path / "calls").read_text()
    assert calls == "".join(f"--import {report} --page {page} --csv\n" for page in ("raw", "details"))
    assert [file.name for file in report.parent.iterdir()] == [report.name]


def test_without_ncu_the_error_names_what_to_install_and_what_to_run_elsewhere(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TraceError, match=r"install Nsight Compute.*ncu --import '--a run\.ncu-rep' --page raw --csv"):
        read_ncu(report)
    monkeypatch.setenv("PERFKIT_NCU", "/nowhere/ncu")
    with pytest.raises(TraceError, match="PERFKIT_NCU names /nowhere/ncu, which is no program"):
        read_ncu(report)


def test_what_ncu_prints_when_it_cannot_read_a_report_is_reported(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, 'echo "==ERROR== The file could not be opened: version 99."; exit 1')

    with pytest.raises(TraceError, match=r"version 99\.\); a report needs an ncu at least as new"):
        read_ncu(report)


def test_rules_that_ncu_cannot_export_cost_none_of_the_metrics(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, details(("gemm", [("Duration", "us", "1.50")])), "ready.csv")
    failing = 'case "$*" in *details*) echo half; echo "no rules here" >&2; exit 1;; esac'
    program(tmp_path, monkeypatch, f"{failing}; cat {tmp_path}/ready.csv")

    read_back = read_ncu(report)

    assert read_back.launches[0].metrics == {TIME: pytest.approx(1.5e-6)}
    assert read_back.lost == ("ncu reported: the texts of ncu's rules could not be exported: no rules here",)
