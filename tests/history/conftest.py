"""Run folders written with known step times, commits and starts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.records import ClockPair, Phases, Rank, Run, Step

MS = 1_000_000
#: 2026-01-05 12:00 UTC, and the time between two runs.
FIRST_NS, APART_NS = 1_767_614_400_000_000_000, 6 * 3600 * 10**9

WriteRun = Callable[..., Path]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts are shown in this time zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def commit_of(number: int) -> str:
    return f"{number:07x}".ljust(40, "0")


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Write the run number ``number`` of a folder, with steps of ``step_ms``."""

    def write(number: int, step_ms: float, *, steps: int = 40, name: str | None = None, **about: Any) -> Path:
        folder = about.pop("folder", tmp_path / "runs") / (name or f"train-{number:04}")
        command: Sequence[str] = about.pop("command", ("train.py", "--epochs", "3"))
        world = about.pop("world_size", 1)
        peak = about.pop("memory_peak_bytes", None)
        start_ns = FIRST_NS + number * APART_NS
        defaults: dict[str, Any] = {
            "host": "ci-1",
            "pid": 1,
            "start_ns": 1_000,
            "end_ns": 2_000,
            "ending": "finished",
            "git_commit": commit_of(number),
            "clock_pairs": (ClockPair(1_000, start_ns),),
            "settings": {"cpu_count": "8"},
            "steps": steps,
        }
        shutil.rmtree(folder, ignore_errors=True)
        writer = RankWriter(folder, 0)
        write_record(folder, Run(launch_id="x", command=tuple(command), folder="/home/me", world_size=world))
        writer.write(Rank(rank=0, launch_id="x", **(defaults | about)))
        times = np.random.default_rng(number).normal(step_ms * MS, step_ms * MS / 50, steps).astype(int).tolist()
        writer.append_steps(
            [
                Step(
                    step=at,
                    start_ns=1_000 + at * 10**9,
                    wall_ns=ns,
                    phases_ns=Phases(data=ns // 4, forward=ns - ns // 4),
                    rss_bytes=5 * 10**8,
                    memory_peak_bytes=peak if at == steps // 2 else None,
                    samples=8,
                )
                for at, ns in enumerate(times)
            ]
        )
        writer.close()
        return folder

    return write


@pytest.fixture
def slower_since(write_run: WriteRun) -> Callable[..., Path]:
    """Write ``runs`` runs of 40 ms that vary by 1%, and are slower by ``share`` from run ``at`` on."""

    def write(runs: int, at: int, share: float, **about: Any) -> Path:
        noise = np.random.default_rng(5).normal(1, 0.01, runs)
        for number in range(runs):
            folder = write_run(number, 40 * noise[number] * (1 + share if number >= at else 1), **about)
        return folder.parent

    return write
