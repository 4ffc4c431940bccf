"""A trial on a terminal."""

from __future__ import annotations

import pytest

from perfkit.reports.console import stdout_console
from perfkit.reports.trial import print_trial
from perfkit.run.records import LossCheck, Trial, TriedChange

SAME = LossCheck(outcome="same", sentence="same loss")
LONG = "+    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, pin_memory=True, num_workers=2)"
TRIAL = Trial(
    program="train.py --epochs 3",
    verdict="1.46x as fast (95% interval 1.38x to 1.54x), same loss, with workers=2.",
    folder="runs/train-1",
    floor=0.02,
    changes=(
        TriedChange(
            names=("workers=2",),
            outcome="faster",
            saving=0.31,
            ci=(0.28, 0.35),
            before_ns=65.6e6,
            after_ns=45.3e6,
            predicted=(0.2, 0.5),
            pays_after=400,
            loss=SAME,
        ),
        TriedChange(
            names=("tf32",), outcome="no-difference", saving=0.001, ci=(-0.01, 0.012), before_ns=65e6, after_ns=65e6
        ),
        TriedChange(names=("compile",), outcome="failed", sentence="RuntimeError: no compiler [gcc] (train.py:9)"),
    ),
    patch=f"--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x\n{LONG}\n",
    unpatched=("channels-last: write it by hand",),
    notes=("The program is not deterministic.",),
    seconds=107.0,
)


def test_it_fits_80_columns_and_has_the_saving_its_interval_and_what_was_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_trial(TRIAL, stdout_console())

    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("+ "))
    row = next(line for line in lines if line.startswith("workers=2 "))
    assert row.split() == ["workers=2", "same", "65.6", "ms", "45.3", "ms", "31%", "28", "to", "35%", "20", "to", "50%"]
    assert "workers=2 pays after 400 steps: until then it costs time." in lines


def test_what_cannot_be_told_from_none_is_no_number_and_a_failure_has_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_trial(TRIAL, stdout_console())

    text = capsys.readouterr().out
    assert " none " in next(line for line in text.splitlines() if line.startswith("tf32"))
    assert "compile: RuntimeError: no compiler [gcc] (train.py:9)" in text


def test_the_patch_is_printed_whole_and_the_last_line_applies_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_trial(TRIAL, stdout_console())

    lines = capsys.readouterr().out.splitlines()
    assert LONG in lines
    assert lines[-1] == "Apply it: git apply runs/train-1/trial.patch"


def test_a_saving_that_is_not_certain_is_no_number_and_its_line_says_how_much_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sentence = "22% (95% interval 5 to 39%) so far: the budget had no time to measure it again"
    undecided = TriedChange(
        names=("workers=2",), outcome="undecided", sentence=sentence, saving=0.22, ci=(0.05, 0.39), before_ns=65e6,
        after_ns=51e6,
    )  # fmt: skip
    print_trial(Trial(program="train.py", verdict="No saving is certain yet.", changes=(undecided,)), stdout_console())

    text = capsys.readouterr().out
    assert "not certain" in next(line for line in text.splitlines() if line.startswith("workers=2 "))
    assert f"workers=2: {sentence}" in " ".join(text.split())


def test_changes_with_the_same_outcome_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "no time was left in the budget"
    changes = tuple(TriedChange(names=(name,), sentence=sentence) for name in ("prefetch=4", "prefetch=8"))
    print_trial(Trial(program="train.py", verdict="", changes=changes), stdout_console())

    assert f"prefetch=4, prefetch=8: {sentence}\n" in capsys.readouterr().out
