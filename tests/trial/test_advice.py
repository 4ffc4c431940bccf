"""Which changes a diagnosis advises, and what is known of them without a run."""

from __future__ import annotations

import pytest

from perfkit.diagnosis import Diagnosis, Figures
from perfkit.errors import UsageError
from perfkit.findings import Finding, Severity
from perfkit.run.records import Loader, Rank
from perfkit.trial.advice import advice_of

WALL_NS = 40_000_000


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(source="run", verdict="", findings=findings, figures=Figures(wall_ns=WALL_NS))


def finding(rule: str, *, cost_ns: int = 20_000_000, severity: Severity = "warning") -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        message="",
        advice="",
        cost_ns=cost_ns,
        saving_low_ns=10_000_000,
        saving_high_ns=20_000_000,
    )


def rank(workers: int) -> Rank:
    loader = Loader(
        dataset="Images",
        batch_size=8,
        num_workers=workers,
        pin_memory=False,
        prefetch_factor=None,
        persistent_workers=False,
    )
    return Rank(rank=0, launch_id="", host="", pid=0, start_ns=0, loaders=(loader,))


def test_what_answers_the_first_finding_is_tried_first_with_what_it_estimates() -> None:
    advice = advice_of(diagnosis(finding("anomaly-detection"), finding("input-bound")), "advised")

    names = [str(one.chosen) for one in advice.candidates]
    assert names[0] == "no-anomaly-detection"
    assert "workers=2" in names
    assert advice.candidates[0].rules == ("anomaly-detection",)
    assert advice.candidates[0].predicted == (0.25, 0.5)


def test_information_is_no_advice() -> None:
    with pytest.raises(UsageError, match="no change of perfkit's answers what was found"):
        advice_of(diagnosis(finding("input-bound", severity="info")), "advised")


def test_what_the_program_does_already_is_not_tried_and_said() -> None:
    advice = advice_of(diagnosis(finding("input-bound")), ["workers=0,2"], rank(workers=2))

    assert [str(one.chosen) for one in advice.candidates] == ["workers=0"]
    (settled,) = advice.settled
    assert (settled.name, settled.outcome) == ("workers=2", "no-effect")
    assert "num_workers=2 already" in settled.sentence


def test_doing_something_more_rarely_is_computed_from_its_cost() -> None:
    advice = advice_of(diagnosis(finding("validation-too-often", cost_ns=20_000_000)), ["validate-every=4"])

    assert advice.candidates == ()
    (settled,) = advice.settled
    assert settled.outcome == "computed"
    # Half of the step, of which a quarter remains.
    assert settled.saving == pytest.approx(0.5 * 0.75)


def test_all_leaves_out_upper_bounds_and_sweeps() -> None:
    advice = advice_of(diagnosis(), "all")

    kinds = {one.chosen.change.kind for one in advice.candidates}
    assert kinds == {"exact", "numeric"}
