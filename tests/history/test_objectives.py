"""Objectives: what is read, what breaks them, and what is said of mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.commands import main
from perfkit.errors import UsageError
from perfkit.history.objectives import parse_objective

WriteRun = Callable[..., Path]


@pytest.mark.parametrize(
    ("text", "metric", "comparison", "limit"),
    [
        ("step <= 40ms", "step", "<=", 40e6),
        ("step<0.04 s", "step", "<", 4e7),
        ("Memory <= 2GB", "memory", "<=", 2e9),
        ("host memory <= 2 GiB", "host-memory", "<=", 2.0**31),
        ("syncs <= 0", "syncs", "<=", 0),
        ("samples >= 1e3/s", "samples", ">=", 1000),
        ("energy <= 500 mJ", "energy", "<=", 0.5),
        ("data <= 5µs", "data", "<=", 5e3),
    ],
)
def test_an_objective_is_read_with_its_unit(text: str, metric: str, comparison: str, limit: float) -> None:
    found = parse_objective(text)

    assert (found.metric, found.comparison, found.limit) == (metric, comparison, pytest.approx(limit))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stp <= 40ms", "did you mean step"),
        ("memroy <= 2GB", "did you mean memory"),
        ("zzz <= 2", "metrics are step, p90"),
        ("step <= 40", "is no unit: units are ns, us, µs, ms, s, min"),
        ("step <= 40MB", "is MB: units are ns"),
        ("step <= 1.2.3ms", "is 1.2.3"),
        ("step = 40ms", "an objective is a metric"),
        ("40ms", "an objective is a metric"),
        ("", "an objective is a metric"),
    ],
)
def test_a_mistake_is_named_with_what_is_near(text: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_objective(text)
    assert words in str(error.value)


def test_an_objective_that_the_newest_run_breaks_is_exit_code_one_with_the_sentence(
    write_run: WriteRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # a long temporary folder breaks no name
    write_run(0, 30)
    folder = str(write_run(1, 44).parent)

    assert main(["history", folder, "--objective", "step <= 46ms", "--objective", "memory <= 1GB"]) == 0
    capsys.readouterr()
    assert main(["history", folder, "--objective", "step <= 40ms"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "train-0001 is 44.0 ms, which breaks step <= 40ms (+10%)" in printed


def test_an_objective_that_was_not_measured_is_not_met(write_run: WriteRun, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_run(0, 30).parent)

    assert main(["history", folder, "--objective", "syncs <= 0"]) == 1
    assert "cannot be checked: syncs are detected on a GPU" in " ".join(capsys.readouterr().out.split())


def test_a_mistake_in_an_objective_is_exit_code_two_before_anything_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["history", "no such folder", "--objective", "stepp <= 40ms"]) == 2
    assert "did you mean step" in capsys.readouterr().err
