"""A detection whose result nothing reads says at its end what it found, or why it checked nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit.errors import UsageError


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(4, 1)


def test_a_block_without_a_name_says_that_it_checked_nothing_and_why(
    model: torch.nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    with perfkit.detect_syncs(mode="dry"):
        model(torch.randn(2, 4)).sum().item()

    said = capsys.readouterr().err
    assert said.startswith("perfkit: detect_syncs: not checked\n")
    assert "detect_syncs(device_of=[model])" in said


def test_a_block_without_a_name_says_what_it_found_by_line(
    model: torch.nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    with perfkit.detect_syncs(device_of=[model]):
        model(torch.randn(2, 4)).sum().item()

    headline, row = capsys.readouterr().err.splitlines()
    assert headline == "perfkit: detect_syncs: 1 sync on 1 line (dry run)"
    assert f"{Path(__file__).name}:" in row
    assert "item" in row


def test_a_result_that_was_read_is_not_printed_again(
    model: torch.nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    with perfkit.detect_syncs(device_of=[model]) as printed:
        model(torch.randn(2, 4)).sum().item()
    repr(printed)
    with perfkit.detect_syncs(device_of=[model], max_syncs=1):  # the budget was checked
        model(torch.randn(2, 4)).sum().item()
    with perfkit.detect_syncs(device_of=[model]) as counted:
        model(torch.randn(2, 4)).sum().item()
    assert len(counted.events) == 1
    del printed, counted

    assert capsys.readouterr().err == ""


def test_a_callback_has_seen_each_sync_so_only_unchecked_blocks_say_so(
    model: torch.nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[object] = []
    with perfkit.detect_syncs(device_of=[model], on_sync=seen.append):
        model(torch.randn(2, 4)).sum().item()
    assert (len(seen), capsys.readouterr().err) == (1, "")

    with perfkit.detect_syncs(mode="dry", on_sync=seen.append):
        model(torch.randn(2, 4)).sum().item()
    assert "not checked" in capsys.readouterr().err


def test_an_error_of_the_program_is_not_followed_by_a_result(
    model: torch.nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyError), perfkit.detect_syncs(device_of=[model]):
        raise KeyError("the program's")

    assert capsys.readouterr().err == ""


def test_a_name_that_is_never_read_and_a_decorated_function_say_it_once_at_the_end_of_the_program(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, perfkit\n"
        "model = torch.nn.Linear(4, 1)\n"
        "with perfkit.detect_syncs(device_of=[model]) as syncs:\n"
        "    model(torch.randn(2, 4)).sum().item()\n"
        "@perfkit.detect_syncs\n"
        "def step(x):\n"
        "    return model(x).sum().item()\n"
        "for _ in range(3):\n"
        "    step(torch.randn(2, 4))\n"
        "print('the end of the script')\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert (done.returncode, done.stdout) == (0, "the end of the script\n"), done.stderr
    assert sorted(line for line in done.stderr.splitlines() if line.startswith("perfkit: ")) == [
        "perfkit: detect_syncs: 1 sync on 1 line (dry run)",
        "perfkit: detect_syncs: not checked",
    ]


def test_the_decorator_needs_no_parentheses_and_keeps_the_functions_name_and_result(model: torch.nn.Module) -> None:
    @perfkit.detect_syncs
    def step(x: torch.Tensor) -> float:
        """Its text."""
        return model(x).sum().item()

    assert isinstance(step(torch.ones(2, 4)), float)
    assert (step.__name__, step.__doc__) == ("step", "Its text.")
    assert step.syncs.observed is False  # type: ignore[attr-defined]


def test_marks_of_device_of_end_with_their_block(model: torch.nn.Module) -> None:
    with perfkit.detect_syncs(device_of=[model]) as first:
        result = model(torch.ones(2, 4))
        result.sum().item()
    other = torch.zeros(3)
    with perfkit.detect_syncs(device_of=[other]) as second:
        result.sum().item()
        model(torch.ones(2, 4)).sum().item()
        other.sum().item()

    assert sum(event.count for event in first.events) == 1
    assert [event.count for event in second.events] == [1]


@pytest.mark.parametrize(
    ("decorated", "fix"),
    [
        (torch.nn.Linear(2, 2), "device_of=[model]"),
        (torch.nn.Linear, "decorate its method"),
        (staticmethod(len), "below @staticmethod"),
    ],
    ids=["a module", "a class", "a staticmethod"],
)
def test_what_cannot_be_decorated_is_refused_with_what_to_write(decorated: object, fix: str) -> None:
    with pytest.raises(UsageError, match="decorates functions and methods") as refused:
        perfkit.detect_syncs(decorated)  # type: ignore[call-overload]

    assert fix in str(refused.value)
