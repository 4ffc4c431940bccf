"""A million steps: their last ones cost what the first did, and they are read in bounded memory.

Costs are processor time, and compared inside one run: wall time depends on what else the machine does.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.reading import read_run
from perfkit.run.records import Phases, Rank, Run, Step

_STEPS = 1_000_000

#: Prints, for each 200th part of the run, the processor time of a step in us, resident memory and the folder's bytes.
_PROGRAM = """
import json, os, sys, time
import torch, perfkit

folder, steps, windows, ranges, options = sys.argv[1], *map(int, sys.argv[2:5]), json.loads(sys.argv[5])
mark, x, pages = perfkit.range("inner"), torch.zeros(16), os.sysconf("SC_PAGE_SIZE")
schedule = perfkit.schedule(wait=steps // windows - 4, warmup=1, active=3, repeat=windows)
part, points = steps // 200, []
with perfkit.profile(folder, schedule=schedule, quiet=True, **options) as prof:
    at = time.process_time()
    for step in prof.steps(range(steps)):
        x.add_(1)
        for _ in range(ranges):
            with mark:
                pass
        if step % part == part - 1:
            now = time.process_time()
            resident = int(open("/proc/self/statm").read().split()[1]) * pages
            size = sum(entry.stat().st_size for entry in os.scandir(f"{folder}/rank-0"))
            points.append(((now - at) / part * 1e6, resident, size))
            at = time.process_time()
        if step == steps // 2 and "triggers" not in options:
            open(f"{folder}/trigger", "w").close()
print(json.dumps(points))
"""


def recorded(folder: Path, *, ranges: int, **options: Any) -> list[tuple[float, int, int]]:
    arguments = [str(folder), str(_STEPS), "200", str(ranges), json.dumps(options)]
    # A file: lines of code without one are not sampled.
    program = folder.with_name("train.py")
    program.write_text(_PROGRAM)
    done = subprocess.run([sys.executable, str(program), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [tuple(point) for point in json.loads(done.stdout.splitlines()[-1])]


def assert_flat(points: list[tuple[float, int, int]]) -> None:
    """The last steps are as fast as the first, memory does not grow, and the folder stays within its bounds."""
    # A part with a window takes longer, and so does one in which another program ran: the fastest of each has neither.
    first, last = ([cpu_us for cpu_us, _, _ in part] for part in (points[10:50], points[-40:]))
    assert min(last) < 1.25 * min(first), (min(first), min(last))
    assert statistics.median(last) < 1.5 * statistics.median(first)
    # From a fifth of the run on: by then each part of perfkit has been used, and the rows have been merged.
    resident = [bytes_ for _, bytes_, _ in points]
    assert max(resident[-40:]) - max(resident[:40]) < 16e6, resident[::10]
    # 18,000 rows, and 200 windows of some tens of kB.
    assert max(size for _, _, size in points) < 20e6


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_steps_with_200_windows_and_ten_million_ranges_take_no_more_at_the_end_than_at_the_start(
    tmp_path: Path,
) -> None:
    assert_flat(recorded(tmp_path / "x", ranges=10, triggers=[]))

    rank = read_run(tmp_path / "x").ranks[0]
    assert sum(row.steps for row in rank.steps) == _STEPS
    # A range's runs are summed, and no row was added after the first ones.
    assert [(row.name, row.count) for row in rank.ranges if row.name == "inner"] == [("inner", 10 * _STEPS)]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_so_do_a_million_steps_that_are_sampled_and_watched_with_a_window_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    command = [sys.executable, "-m", "perfkit", "watch", str(folder), "--wait", "--every", "0.5"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    # With half of the time for itself the sampler never stops.
    assert_flat(recorded(folder, ranges=0, budget=0.5))

    out, err = watching.communicate(timeout=120)
    assert (watching.returncode, err) == (0, "")
    assert f"step {_STEPS - 1:,}" in out.replace("step 999999", "step 999,999").splitlines()[-1]
    rank = read_run(folder).ranks[0]
    assert rank.rank is not None
    assert any("file" in (window.reason or "") for window in rank.rank.windows)
    assert rank.lines is not None
    assert rank.lines.rows
    assert sum(row.steps for row in rank.steps) == _STEPS


def a_folder(folder: Path, steps: int, seed: int) -> None:
    """A run with a row for each step, 320 MB for a million: perfkit writes none, but anyone may."""
    folder.mkdir()
    write_record(folder, Run(launch_id="a", command=("train.py",), folder=str(folder), world_size=1))
    RankWriter(folder, 0).write(Rank(rank=0, launch_id="a", host="h", pid=1, start_ns=0, ending="finished"))
    encoder = msgspec.json.Encoder()
    with (folder / "rank-0" / "steps.jsonl").open("wb") as file:
        for start in range(0, steps, 1000):
            file.write(encoder.encode_lines([a_row(step, seed) for step in range(start, start + 1000)]))


def a_row(step: int, seed: int) -> Step:
    # The remainders of a product are as good as chance here.
    forward = 100_000 + (step * 7919 + seed) % 20_011 + (3_000_000 if step % 1000 == 999 else 0)
    backward = 150_000 + (step * 104_729 + seed) % 30_011
    phases = Phases(data=6000, transfer=0, forward=forward, backward=backward, optimizer=40_000, other=3000)
    wall_ns = 49_000 + forward + backward
    return Step(
        step=step, start_ns=step * 400_000, wall_ns=wall_ns, phases_ns=phases, samples=64, recompiles=0, gc_ns=0,
        batch_elements=50_176, loss=2.3 / (1 + step / 1000),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_rows_are_diagnosed_and_compared_within_300_mb_and_3_s_for_each_100_000(tmp_path: Path) -> None:
    a_folder(tmp_path / "a", _STEPS, 1)
    a_folder(tmp_path / "b", 10_000, 2)
    assert (tmp_path / "a" / "rank-0" / "steps.jsonl").stat().st_size > 256 * 2**20

    said = said_within(tmp_path, 30, "diagnose", "a")
    assert "are known as means of up to 512 steps" in said
    # The file is read twice: to be diagnosed, and for its steps.
    said = said_within(tmp_path, 60, "compare", "a", "b")
    assert "No difference" in said
    assert "20,010 of the 1,000,000 steps of a are compared: those with rows of their own" in said


def said_within(folder: Path, seconds: float, *command: str) -> str:
    """What a command prints; it takes no more processor time, and no more than 300 MB."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "perfkit", *command]
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        started = subprocess.Popen(arguments, cwd=folder, stdout=out, stderr=err, env=environment)
        # Of this process and those below it: RUSAGE_CHILDREN has the largest child of any test so far.
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        said, errors = out.read(), err.read()
    assert (started.returncode, errors) == (0, "")
    assert used.ru_utime + used.ru_stime < seconds
    assert used.ru_maxrss < 300e3  # KiB
    return " ".join(said.split())
