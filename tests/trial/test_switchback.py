"""Changes that are switched while a program runs: which steps have them, and what is read from the steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit.run.reading import read_run
from perfkit.trial.applied import changes
from perfkit.trial.switchback import Switching, blocks_of_switched, follow

SWITCHING = Switching(changes=("threads=1",), blocks=8, block_steps=3, warmup_steps=4)


class Watched(changes):
    """Changes that note what is called, and fail at one call, if asked to."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__("gradients-to-none")
        self.calls: list[tuple[int, str]] = []
        self.fails_at = fails_at

    def _note(self, what: str) -> None:
        self.calls.append((perfkit.profiler._active.step_num if perfkit.profiler._active else -1, what))
        if len(self.calls) == self.fails_at:
            raise RuntimeError("cannot be switched")

    def suspend(self) -> None:
        self._note("off")

    def resume(self) -> None:
        self._note("on")


def train(folder: Path, applied: changes, steps: int = SWITCHING.steps) -> None:
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with perfkit.profile(folder, ranks=(), quiet=True) as prof:
        prof.diagnoses = False
        follow(SWITCHING, applied, prof)
        for _ in prof.steps(range(steps)):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()


@pytest.mark.parametrize("seed", range(3))
def test_each_pair_of_blocks_has_one_with_the_changes_in_an_order_of_the_seed(seed: int) -> None:
    switching = Switching(changes=("tf32",), blocks=40, seed=seed)
    blocks = [
        [switching.is_on(step) for step in range(begin, begin + switching.block_steps)]
        for begin in range(switching.warmup_steps, switching.steps, switching.block_steps)
    ]

    assert all(len(set(block)) == 1 for block in blocks)
    assert all(blocks[pair][0] != blocks[pair + 1][0] for pair in range(0, 40, 2))
    assert 4 < sum(blocks[pair][0] for pair in range(0, 40, 2)) < 16
    assert blocks != [[Switching(changes=(), blocks=40, seed=seed + 1).is_on(8 + 5 * block)] * 5 for block in range(40)]


def test_the_first_step_of_a_block_and_the_warm_up_are_not_compared() -> None:
    assert [SWITCHING.block_of(step) for step in range(12)] == [None] * 5 + [0, 0, None, 1, 1, None, 2]
    assert SWITCHING.block_of(SWITCHING.steps - 1) == 7
    assert SWITCHING.block_of(SWITCHING.steps + 1) is None
    # Both states come in the warm-up.
    assert [SWITCHING.is_on(step) for step in range(4)] == [False, False, True, True]


def test_a_program_is_switched_where_its_schedule_says_and_made_with_the_changes_on(tmp_path: Path) -> None:
    applied = Watched()
    train(tmp_path / "run", applied)

    expected = [
        (step, "on" if SWITCHING.is_on(step) else "off")
        for step in range(1, SWITCHING.steps + 1)
        if SWITCHING.is_on(step) != (SWITCHING.is_on(step - 1) or step == 1)
    ]
    assert applied.calls == expected
    assert not read_run(tmp_path / "run").ranks[0].rank.errors  # type: ignore[union-attr]
    assert len(blocks_of_switched(tmp_path / "run", SWITCHING).first) == 4


def test_a_switch_that_fails_does_not_end_the_program_and_nothing_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    applied = Watched(fails_at=3)
    train(tmp_path / "run", applied)

    rank = read_run(tmp_path / "run").ranks[0]
    assert len(applied.calls) == 3
    assert len(rank.steps) == SWITCHING.steps
    assert rank.rank is not None
    assert rank.rank.errors == ("switching changes: RuntimeError: cannot be switched",)
    assert blocks_of_switched(tmp_path / "run", SWITCHING).first == []
    assert "training goes on" in capsys.readouterr().err


def test_real_changes_are_off_in_the_steps_that_are_compared_as_without(tmp_path: Path) -> None:
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with_none = []
    with changes("gradients-to-none") as applied, perfkit.profile(tmp_path / "run", ranks=(), quiet=True) as prof:
        prof.diagnoses = False
        follow(SWITCHING, applied, prof)
        for step in prof.steps(range(SWITCHING.steps)):
            weight.sum().backward()
            optimizer.zero_grad(set_to_none=False)
            with_none.append((step, weight.grad is None))

    assert with_none[1:] == [(step, SWITCHING.is_on(step)) for step in range(1, SWITCHING.steps)]


def write_run(folder: Path, times: list[int]) -> Path:
    with perfkit.profile(folder, ranks=(), quiet=True):
        pass
    (folder / "rank-0" / "steps.jsonl").write_text(
        "".join(
            json.dumps({"step": step, "start_ns": 0, "wall_ns": time, "phases_ns": {}}) + "\n"
            for step, time in enumerate(times)
        )
    )
    return folder


def test_blocks_without_the_changes_come_first_whatever_their_order_was(tmp_path: Path) -> None:
    # The first step of each block is slow, and each pair of blocks takes longer than the one before.
    steps = range(SWITCHING.warmup_steps, SWITCHING.steps)
    pairs = [(step - SWITCHING.warmup_steps) // 6 for step in steps]
    times = [
        9999 if SWITCHING.block_of(step) is None else 100 * (pair + 1) - 10 * SWITCHING.is_on(step)
        for step, pair in zip(steps, pairs, strict=True)
    ]
    run = write_run(tmp_path / "run", [7] * SWITCHING.warmup_steps + times)

    blocks = blocks_of_switched(run, SWITCHING)

    assert blocks.first == [100, 200, 300, 400]
    assert blocks.second == [90, 190, 290, 390]


def test_a_program_that_was_over_early_has_the_pairs_of_which_it_made_both_blocks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [100] * (SWITCHING.warmup_steps + 3 * 3 + 2))

    assert len(blocks_of_switched(run, SWITCHING).first) == 2
    assert blocks_of_switched(tmp_path / "no run", SWITCHING).first == []


def test_the_process_of_a_program_does_not_load_numpy_for_it() -> None:
    code = "import sys, perfkit.trial.child, perfkit.trial.switchback; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
