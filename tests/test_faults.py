"""Faults in training or around it: perfkit never changes the outcome, and leaves nothing switched on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import perfkit
from perfkit.run.reading import RankFolder, read_run
from perfkit.trace import read_trace

SHORT = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)


class Mine(Exception):
    """The training's own error."""


class Trap:
    """Raises when it is reached for the n-th time."""

    def __init__(self, at: int = 4) -> None:
        self.left = at
        self.armed = ""

    def __call__(self, place: str) -> None:
        if place == self.armed:
            self.left -= 1
            if self.left == 0:
                raise Mine(place)


trap = Trap()


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        trap("data")
        return torch.ones(4)


class Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        trap("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        trap("backward")
        return grads[0]


class Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]  # torch's overloads
        trap("optimizer")
        return super().step(closure)


def train(batches: Any = None) -> int:
    model = torch.nn.Linear(4, 1)
    optimizer = Optimizer(model.parameters(), lr=0.1)
    done = 0
    for batch in DataLoader(Samples()) if batches is None else batches:
        loss = Passes.apply(model(batch)).sum()  # type: ignore[no-untyped-call]  # torch leaves it without types
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
    return done


def rank_of(folder: Path) -> RankFolder:
    return read_run(folder).ranks[0]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    trap.armed = ""


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("at", [1, 3, 4, 5, 7])
@pytest.mark.parametrize("place", ["data", "forward", "backward", "optimizer"])
def test_an_exception_in_any_phase_is_the_trainings_own(tmp_path: Path, place: str, at: int, explicit: bool) -> None:
    trap.armed, trap.left = place, at
    with (
        pytest.raises(Mine, match=place),
        perfkit.profile(tmp_path / "x", schedule=SHORT, detect_syncs="auto", quiet=True) as prof,
    ):
        train(prof.steps(DataLoader(Samples())) if explicit else None)

    assert not torch.autograd._profiler_enabled()
    record = rank_of(tmp_path / "x") if at > 1 else None
    if record is not None:
        assert len(record.steps) >= at - 2
        assert record.rank is not None
        assert record.rank.errors == ()


@pytest.mark.parametrize("place", ["data", "forward", "backward", "optimizer"])
def test_a_training_that_catches_its_error_is_recorded_further(tmp_path: Path, place: str) -> None:
    trap.armed, trap.left = place, 2
    with perfkit.profile(tmp_path / "x", schedule=SHORT, quiet=True):
        with pytest.raises(Mine):
            train()
        trap.armed = ""
        train()

    steps = rank_of(tmp_path / "x").steps
    assert len(steps) >= 10
    for step in steps:
        known = [getattr(step.phases_ns, name) or 0 for name in step.phases_ns.__struct_fields__]
        assert sum(known) == step.wall_ns


def test_a_clock_that_jumps_back_gives_no_negative_time(tmp_path: Path, clock: Any) -> None:
    clock.pass_ms(1000)  # rows that begin before zero are damaged
    with perfkit.profile(tmp_path / "x", schedule=SHORT, quiet=True) as prof:
        for number in range(6):
            clock.pass_ms(-50 if number == 3 else 10)
            prof.step()

    assert [step.wall_ns for step in rank_of(tmp_path / "x").steps] == [10e6, 10e6, 10e6, 0, 10e6, 10e6]


def test_steps_inside_steps_belong_to_the_outer_step(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "x", schedule=SHORT, quiet=True) as prof:
        for _ in prof.steps(range(5)):
            assert list(prof.steps(range(3))) == [0, 1, 2]

    assert len(rank_of(tmp_path / "x").steps) == 5


def test_a_break_in_the_middle_of_a_window_saves_it(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "x", schedule=SHORT, quiet=True) as prof:
        for number in prof.steps(range(10)):
            torch.ones(2).sum()
            if number == 3:
                break

    assert len(rank_of(tmp_path / "x").windows) == 1
    assert not torch.autograd._profiler_enabled()


def test_a_folder_that_vanishes_during_the_run_is_reported_once_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with perfkit.profile(tmp_path / "x", schedule=SHORT, quiet=True):
        shutil.rmtree(tmp_path / "x")
        assert train() == 10

    told = capsys.readouterr().err
    assert "training goes on" in told
    assert told.count("writing the run folder") == 1


@pytest.mark.parametrize("part", ["hooks", "sampler", "recorder", "window"])
def test_a_part_of_perfkit_that_cannot_start_is_reported_and_training_goes_on(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*anything: Any, **more: Any) -> Any:
        raise RuntimeError(f"no {part} today")

    import perfkit.ranges
    import perfkit.record.hooks.torch_hooks
    import perfkit.record.samplers.line_sampler
    import perfkit.record.windows.kineto

    places: dict[str, tuple[Any, str]] = {
        "hooks": (perfkit.record.hooks.torch_hooks.LoopHooks, "attach"),
        "sampler": (perfkit.record.samplers.line_sampler.LineSampler, "start"),
        "recorder": (perfkit.ranges, "start_recorder"),
        "window": (perfkit.record.windows.kineto.KinetoRecorder, "open"),
    }
    monkeypatch.setattr(*places[part], broken)
    with perfkit.profile(tmp_path / "x", schedule=SHORT, quiet=True):
        assert train() == 10

    assert f"no {part} today (training goes on)" in capsys.readouterr().err


ENDLESS = """
import sys, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("begin", flush=True)
while True:
    for batch in DataLoader(torch.randn(200, 4), batch_size=4):
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def start_endless(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "train.py").write_text(ENDLESS)
    return subprocess.Popen(
        [sys.executable, "-m", "perfkit", "run", "--out", "x", "train.py"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_a_random_moment_ends_the_program_as_without_perfkit_and_leaves_a_readable_run(
    tmp_path: Path, number: signal.Signals, seed: int
) -> None:
    process = start_endless(tmp_path)
    rows = tmp_path / "x" / "rank-0" / "steps.jsonl"
    # A loaded machine may write the first rows one by one.
    wait_until(lambda: rows.is_file() and rows.read_bytes().count(b"\n") > 10)
    time.sleep(random.Random(seed).uniform(0, 1.5))
    process.send_signal(number)

    assert process.wait(timeout=60) == -number
    rank = rank_of(tmp_path / "x")
    assert len(rank.steps) > 10
    assert [step.step for step in rank.steps] == list(range(len(rank.steps)))
    assert rank.rank is not None
    assert rank.rank.ending is None
    # Killed while it wrote: what it had is hidden, under a name that no reader takes, and what has a name is whole.
    assert all(path.name.startswith(".part-") for path in (tmp_path / "x").rglob("*.tmp"))
    for trace in (*rank.windows, *rank.stacks):
        assert read_trace(trace).lost == ()


@pytest.mark.slow
def test_no_rank_waits_for_a_rank_that_died(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "weight = torch.ones(4, requires_grad=True); optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for number in range(300):\n"
        "    if dist.get_rank() == 1 and number == 30: os._exit(3)\n"
        "    weight.sum().backward(); optimizer.step(); time.sleep(0.1)\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "perfkit", "run", "--out", "x", "train.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode != 0  # torchrun's own word on the dead rank
    assert time.monotonic() - began < 200
    assert len(rank_of(tmp_path / "x").steps) >= 1
