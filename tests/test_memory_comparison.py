"""Memory before and after: what is more than the noise of the steps, and memory as a budget beside time."""

from __future__ import annotations

import json

import msgspec
import pytest

from perfkit.commands import main
from perfkit.comparison import Comparison, compare
from perfkit.diagnosis import Diagnosis, Figures
from perfkit.errors import UsageError
from perfkit.measures.results.peak_memory import PeakMemory, StepMemory
from perfkit.measures.results.steps import TypicalStep
from perfkit.run.records import Phases

MB = 1_000_000


def side(*peaks: int, activations: int = 0) -> Diagnosis:
    """A diagnosis of a run whose recorded steps had these peaks, in MB."""
    steps = tuple(StepMemory(step=i, peak_bytes=peak * MB, end_bytes=10 * MB) for i, peak in enumerate(peaks))
    memory = PeakMemory(
        device="cpu",
        source="peak-0.pt.trace.json.gz",
        step=len(peaks),
        peak_bytes=peaks[-1] * MB,
        end_bytes=10 * MB,
        phase="backward",
        op="aten::mm",
        at=None,
        holding={"parameters": 10 * MB, "activations": activations * MB},
        steps=steps,
    )
    return Diagnosis(source="runs/x", verdict="", figures=Figures(peak_memory=(memory,)))


def peak(comparison: Comparison) -> str:
    return next(one.change for one in comparison.memory if one.what == "peak")


def test_a_peak_is_more_or_less_only_where_no_step_of_one_side_reaches_the_other() -> None:
    assert peak(compare(side(100, 101), side(80, 82))) == "less"
    assert peak(compare(side(80, 82), side(100, 101))) == "more"
    assert peak(compare(side(80, 101), side(100, 102))) == "no difference"


def test_a_kind_that_changed_is_named() -> None:
    found = compare(side(100, activations=80), side(60, activations=40)).memory

    assert [one.what for one in found] == ["peak", "held at its end", "activations at the peak"]
    assert found[2].sentence == "cpu activations at the peak: 80 MB → 40 MB (-50%), not tested"


def test_a_budget_for_memory_is_a_share_of_the_peak_and_noise_keeps_it() -> None:
    before = side(100, 100)

    assert compare(before, side(104, 104), max_more={"memory": 0.05}).broken == ()
    (broken,) = compare(before, side(110, 110), max_more={"memory": 0.05}).broken
    assert broken == "memory: cpu peak: 100 MB → 110 MB (+10%), more; at most +0.05 is allowed"
    assert compare(before, side(99, 110), max_more={"memory": 0.05}).broken == ()
    assert compare(before, side(80, 80), max_more={"memory": 0.0}).broken == ()


def test_a_budget_for_memory_that_was_not_recorded_is_broken() -> None:
    (broken,) = compare(side(100), Diagnosis(source="y", verdict=""), max_more={"memory": 0.05}).broken
    assert "perfkit run --memory" in broken


def test_without_recorded_steps_the_allocators_own_peaks_are_compared() -> None:
    def on_device(peak_bytes: int) -> Diagnosis:
        step = TypicalStep(
            steps=10, wall_ns=1, median_ns=1, p10_ns=1, p90_ns=1, phases_ns=Phases(), source="x",
            memory_peak_bytes=peak_bytes,
        )  # fmt: skip
        return Diagnosis(source="x", verdict="", step=step)

    (found,) = compare(on_device(100 * MB), on_device(150 * MB)).memory
    assert (found.device, found.what, found.changed, found.change) == ("device", "peak", "+50%", "not tested")


def test_a_budget_is_a_percentage_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--max-more", "memory=much"]) == 2
    assert "--max-more memory takes a percentage" in capsys.readouterr().err
    with pytest.raises(UsageError, match="memory"):
        compare(side(1), side(1), max_more={"memry": 0.1})


def test_json_text_and_a_notebook_show_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    from perfkit.reports.console import stdout_console  # the terminal's width is read here
    from perfkit.reports.terminal import print_comparison

    comparison = compare(side(100), side(80))
    assert json.loads(comparison.to_json())["memory"][0]["after_bytes"] == 80 * MB
    assert "80 MB" in comparison._repr_html_()
    print_comparison(comparison, stdout_console())
    assert "cpu peak: 100 MB → 80 MB (-20%), less" in capsys.readouterr().out
    assert msgspec.json.decode(comparison.to_json(), type=Comparison).memory == comparison.memory
