"""The window of a run of unknown length comes earlier where its steps are long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.record.windows import schedules
from perfkit.run.reading import RankFolder


def recorded(folder: Path, steps: int, **options: Any) -> tuple[list[int], list[str]]:
    """The first and last step of each window, and what each step was used for, of steps of 5 ms."""
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    with perfkit.profile(folder, **options) as prof:
        for _ in range(steps):
            time.sleep(0.005)
            weight.sum().backward()
            optimizer.step()
            prof.step()
    rank = RankFolder(folder / "rank-0", 0)
    return [step for one in rank.rank.windows for step in (one.first_step, one.last_step)], [s.kind for s in rank.steps]


@pytest.fixture
def _long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_LONG_NS", 1_000_000)


@pytest.mark.usefixtures("_long_steps")
def test_of_ten_long_steps_a_window_and_the_ops_are_recorded(tmp_path: Path) -> None:
    windows, kinds = recorded(tmp_path / "run", 11)

    # The optimizer's step and prof.step() are two boundaries at first: step 1 is short here.
    assert windows in ([3, 4], [4, 5])
    assert kinds[:2] == ["timed"] * 2
    assert kinds.count("ops") == 2


@pytest.mark.parametrize(
    ("step", "walls_s", "begins"),
    [
        (2, [9.0, 0.6], 2),
        (2, [9.0, 0.4], None),
        (3, [0.4, 0.8], 3),
        (3, [0.2, 0.4], None),
        (3, [0.8], None),
        (4, [0.8, 0.8, 0.8], None),
    ],
)
def test_the_first_step_says_nothing_and_others_count_by_their_mean(
    step: int, walls_s: list[float], begins: int | None
) -> None:
    chosen = schedules.early_schedule(step, [round(wall * 1e9) for wall in walls_s])

    assert (chosen.wait if chosen is not None else None) == begins


def test_short_steps_wait_for_ten(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", 16)[0] == [12, 14]


@pytest.mark.usefixtures("_long_steps")
@pytest.mark.parametrize("options", [{"schedule": schedules.DEFAULT}, {"total_steps": 40}])
def test_a_schedule_of_the_user_s_and_a_known_length_are_kept(tmp_path: Path, options: dict[str, Any]) -> None:
    assert recorded(tmp_path / "run", 16, **options)[0] == [12, 14]
