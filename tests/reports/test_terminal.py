"""What a person reads: all of it in 80 columns and 25 lines, more where there is room."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.console import Console

from perfkit._location import Location
from perfkit.comparison.results import Comparison, Count, Difference
from perfkit.diagnosis import Diagnosis, Figures, Overhead
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.host import RangeTime
from perfkit.measures.results.measurements import TraceFacts
from perfkit.measures.results.steps import SlowStep, Throughput, Utilization
from perfkit.reports.terminal import print_comparison, print_diagnosis

MS = 1_000_000

IN_FULL = """\
runs/train · steps.jsonl, 40 steps
A step takes 80.0 ms, most of it waiting for data (56%).

█████████████████████████████████████████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒░░░
█ data 45.0 ms 56%  ▓ forward 20.0 ms 25%  ▒ backward 12.0 ms 15%
░ optimizer 3.0 ms 4%

1 input-bound  train.py:31                45.0 ms/step (56%), saves 20.0-45.0 ms
  Waiting for data takes 45.0 ms of the 80.0 ms step: Reviews.__getitem__ runs
  in the training process.
  → Do the work of Reviews.__getitem__ once, ahead of training, or beside it:
  DataLoader(num_workers=4). Critical: measured directly.
2 many-small-ops  model.py:11            12.0 ms/step (15%), saves up to 12.0 ms
  A loop runs 100 times per step over 3 small ops (select mul add): 12.0 ms,
  backward included.
  → Replace the loop by one call over the whole tensor (batched matmul,
  reduction with dim=, cumsum). Warning: likely, its time is an estimate.
3 sync-in-step  train.py:60                                       not quantified
  item() waits for the device once per step.
  Not quantified: on a CPU there is no device to wait for.
  → Keep the value on the device and read it rarely.
Note: no window was recorded
Next: perfkit explain input-bound says how to correct it
"""


def test_three_findings_fit_80_columns_and_25_lines(diagnosis: Diagnosis, written: Callable[..., str]) -> None:
    text = written(print_diagnosis, diagnosis)

    assert text == IN_FULL
    assert len(text.splitlines()) <= 25


def test_a_pipe_gets_no_colour_codes_and_a_terminal_does(diagnosis: Diagnosis, written: Callable[..., str]) -> None:
    file = io.StringIO()
    print_diagnosis(diagnosis, Console(file=file, width=80, force_terminal=True, color_system="standard"))

    assert "\x1b[" not in written(print_diagnosis, diagnosis)
    assert "\x1b[" in file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal_and_the_bar_fills_it(
    diagnosis: Diagnosis, written: Callable[..., str], width: int
) -> None:
    lines = written(print_diagnosis, diagnosis, width).splitlines()

    assert max(map(len, lines)) <= width
    assert width in [len(line) for line in lines if set(line) <= set("█▓▒░")]


def test_at_most_five_findings_are_shown_and_the_rest_on_request(
    diagnosis: Diagnosis, written: Callable[..., str]
) -> None:
    seven = msgspec.structs.replace(diagnosis, findings=diagnosis.findings[:1] * 7)

    text = written(print_diagnosis, seven)

    assert text.count("input-bound  train.py") == 5
    assert "2 more: --all" in text
    everything = written(print_diagnosis, seven, all=True)
    assert everything.count("input-bound  train.py") == 7
    assert "waiting for data: 45.0 ms (steps.jsonl, 40 steps)" in everything


def test_what_a_finding_explains_is_printed_below_it(diagnosis: Diagnosis, written: Callable[..., str]) -> None:
    effect = msgspec.structs.replace(
        diagnosis.findings[1], rule="launch-bound", follows="many-small-ops", message="The device waits."
    )

    text = written(print_diagnosis, msgspec.structs.replace(diagnosis, findings=(*diagnosis.findings, effect)))

    assert "  explains launch-bound: The device waits.\n" in text
    assert "4 " not in [line[:2] for line in text.splitlines()]


def test_a_file_that_takes_ascii_only_gets_ascii(diagnosis: Diagnosis) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", errors="strict")

    print_diagnosis(diagnosis, Console(file=file, width=80))

    file.flush()
    assert "#####%%%%%" in raw.getvalue().decode("ascii")


def test_a_trace_without_steps_is_drawn_by_what_its_device_did(written: Callable[..., str]) -> None:
    device = DeviceTime(
        device=0, name="A100", window_ns=100 * MS, busy_ns=60 * MS, idle_ns=40 * MS, compute_ns=50 * MS,
        communication_ns=0, copy_ns=10 * MS, memset_ns=0, copies_ns={}, copy_bytes={}, pageable_ns=0, overlap_ns=0,
        exposed_communication_ns=0, exposed_copy_ns=10 * MS, kernels=9, mean_kernel_ns=None,
        causes={"sync": 30 * MS, "python": 10 * MS}, longest=(), unlinked_share=0.0, graph_launches=0, steps=0,
    )  # fmt: skip
    diagnosis = Diagnosis(source="t.json", verdict="Cannot tell.", figures=Figures(devices=(device,)))

    text = written(print_diagnosis, diagnosis, width=100)

    assert "▓ compute 50.0 ms 50%  ▒ copies 10.0 ms 10%  · idle 40.0 ms 40%\n" in text
    assert "device 0 (A100): busy 60% (compute 50%, copies 10%), idle 40%, mainly sync 30%" in text


def test_a_comparison_shows_differences_counts_and_findings(diagnosis: Diagnosis, written: Callable[..., str]) -> None:
    comparison = Comparison(
        before="runs/a",
        after="runs/b",
        verdict="A step is 56% faster: 80.0 ms before, 35.0 ms after.",
        differences=(
            Difference(kind="step", name="step", before_ns=80 * MS, after_ns=35 * MS, change="faster"),
            Difference(kind="phase", name="data", before_ns=45 * MS, after_ns=0, change="not tested"),
            Difference(kind="kernel", name="void at::native::" + "elementwise" * 9, before_ns=None, after_ns=5 * MS),
        ),
        counts=(Count(name="syncs", before=1, after=0),),
        gone=diagnosis.findings[:1],
        notes=("a note",),
    )  # fmt: skip

    assert written(print_comparison, comparison) == (
        "runs/a → runs/b\n"
        "A step is 56% faster: 80.0 ms before, 35.0 ms after.\n"
        "\n"
        "step               80.0 ms →  35.0 ms  -56%    faster\n"
        "data               45.0 ms →     0 ns  -100%   not tested\n"
        "kernels\n"
        "void at::native::elementwiseeleme…         - →   5.0 ms  new     not tested\n"
        "counts per step; recompiles and graph breaks of the run\n"
        "syncs                    1 →        0\n"
        "no longer found: input-bound  train.py:31  45.0 ms\n"
        "a note\n"
    )


def test_a_reporter_returns_nothing(diagnosis: Diagnosis) -> None:
    result: Any = print_diagnosis(diagnosis, Console(file=io.StringIO()))  # type: ignore[func-returns-value]  # on purpose

    assert result is None


def test_escape_sequences_in_names_do_not_reach_the_terminal(diagnosis: Diagnosis, written: Callable[..., str]) -> None:
    hostile = msgspec.structs.replace(
        diagnosis.findings[0], message="\x1b]0;title op", spent=Location(file="\x1b[31mt.py", line=1)
    )

    text = written(print_diagnosis, msgspec.structs.replace(diagnosis, findings=(hostile,)), all=True)

    assert "?]0;title op" in text
    assert "\x1b" not in text


def test_all_shows_ranges_with_their_time_per_step_and_the_short_form_none(
    diagnosis: Diagnosis, written: Callable[..., str]
) -> None:
    trace = TraceFacts(
        path="w.json", format="kineto", events=9, device_events=0, devices=(), steps=3, span_ns=9 * MS, rank=0,
        world_size=1, has_stacks=False, has_shapes=False, lost=(),
    )  # fmt: skip
    ranges = (
        RangeTime(name="layers.0.attention", count=6, host_ns=12 * MS, source="trace"),
        RangeTime(name="layers.0.attention", count=10, host_ns=99 * MS, source="ranges.npz"),
        RangeTime(name="whole run \x1b[31m", count=40, host_ns=80 * MS, source="ranges.npz"),
    )
    figures = msgspec.structs.replace(diagnosis.figures, ranges=ranges, trace=trace)
    diagnosis = msgspec.structs.replace(diagnosis, figures=figures)

    assert written(print_diagnosis, diagnosis, all=True).splitlines()[-5:-2] == [
        "range                  count      per step        each",
        "layers.0.attention         6        4.0 ms      2.0 ms",
        "whole run ?[31m           40             -      2.0 ms",
    ]
    assert "layers.0" not in written(print_diagnosis, diagnosis)


def test_a_cost_that_comes_in_some_steps_is_a_share_of_the_mean_step(
    diagnosis: Diagnosis, written: Callable[..., str]
) -> None:
    first, *others = diagnosis.findings
    rare = msgspec.structs.replace(first, of_ns=2 * diagnosis.figures.wall_ns)

    text = written(print_diagnosis, msgspec.structs.replace(diagnosis, findings=(rare, *others)))

    assert "45.0 ms/step (28% of the mean step)" in " ".join(text.split())


def test_all_shows_what_perfkit_cost_once_and_per_step(diagnosis: Diagnosis, written: Callable[..., str]) -> None:
    own = Overhead(step_ns=MS // 10, fixed_ns={"start": 200 * MS, "helpers": 400 * MS})
    diagnosis = msgspec.structs.replace(diagnosis, overhead=own)

    text = " ".join(written(print_diagnosis, diagnosis, all=True).split())
    assert "perfkit itself: 100 µs/step (<1%), 600 ms of processor time once (start 200 ms, helpers 400 ms)" in text
    assert "perfkit itself" not in written(print_diagnosis, diagnosis)


def test_all_also_shows_rates_percentiles_and_the_share_of_the_peak() -> None:
    throughput = Throughput(
        steps=100,
        steps_per_s=20.0,
        samples_per_s=320.0,
        tokens_per_s=None,
        p50_ns=50_000_000,
        p90_ns=55_000_000,
        p99_ns=None,
        slowest=(SlowStep(step=7, wall_ns=90_000_000, phase="data", beyond_ns=1),),
        source="steps.jsonl",
    )
    utilization = Utilization(
        mfu=0.41,
        flops=1,
        recomputed=0,
        flops_per_s=1.0,
        precision="bfloat16",
        peak_flops_per_s=1.0,
        device="H100",
        source="one step",
    )
    diagnosis = Diagnosis(source="x", verdict="fine", figures=Figures(throughput=throughput, utilization=utilization))
    out = io.StringIO()
    print_diagnosis(diagnosis, Console(file=out, width=100), all=True)

    assert "20 steps/s, 320 samples/s; median 50.0 ms, p90 55.0 ms; slowest step 7 90.0 ms" in out.getvalue()
    assert "41% of the dense bfloat16 peak of H100 (model FLOPs utilization)" in out.getvalue()
