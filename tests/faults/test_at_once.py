"""A run that is read while it is written, merged, moved and deleted, by many at once, also on a network file system."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from werkzeug.test import Client

from perfkit.commands import main
from perfkit.diagnosis import diagnose
from perfkit.errors import PerfkitError
from perfkit.integrations.tensorboard import log_directory
from perfkit.integrations.tensorboard.tab import Tab
from perfkit.reports.live import live_line
from perfkit.reports.live_ranks import LateRank
from perfkit.run.follower import RunFollower
from perfkit.run.reading import RankFolder, read_run
from tests.faults.injector import HERE, environment
from tests.hostile.cases import sound_run

ROOT = HERE.parents[1]
#: Ranks that write into one folder: rows at once and few until they are merged, and the other files all the time.
WRITERS = """
import os, sys, threading, time
from pathlib import Path
from perfkit.run import rank_recording, step_file
from perfkit.run.folder_claim import claim_folder
from perfkit.run.rank_writer import write_record
from perfkit.run.records import Phases, Run, Step

folder, ranks, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
step_file.NEWEST_ROWS = 200
os.environ["WORLD_SIZE"] = str(ranks)
recordings = []
for rank in range(ranks):
    os.environ["RANK"] = str(rank)
    assert claim_folder(folder, "launch", overwrite=False) == folder
    recordings.append(rank_recording.RankRecording(folder, "launch", lambda: rank_recording.Parts(facts={})))
write_record(folder, Run(launch_id="launch", command=("x",), folder=".", world_size=ranks))
end = time.monotonic() + seconds

def write(recording, step=0):
    while time.monotonic() < end:
        rows = [Step(step=step + n, start_ns=0, wall_ns=1000, phases_ns=Phases(other=1000)) for n in range(20)]
        recording.add(rows)
        step += 20
        recording.guarded("rows", recording.flush)
        recording.guarded("files", recording.rewrite)
        time.sleep(0.01)
    recording.guarded("the end", lambda: recording.finish("finished"))

threads = [threading.Thread(target=write, args=(one,)) for one in recordings]
[one.start() for one in threads]
[one.join() for one in threads]
print([one.errors for one in recordings if one.errors])
"""


def writers(folder: Path, ranks: int, seconds: float, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITERS, str(folder), str(ranks), str(seconds)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_all(folder: Path, done: Callable[[], bool]) -> tuple[int, list[str]]:
    """Read as `diagnose`, `watch`, `trigger` and TensorBoard do until ``done``: (times read, refusals of perfkit's)."""
    reads, refusals, crashes = [0], [], []

    def follow() -> None:
        live, late = RunFollower(folder), LateRank()
        live.find_ranks()
        for rank in live.ranks.values():
            rank.poll()
            steps = [row.step for row in rank.tail.rows]
            assert steps == sorted(set(steps))
            late.update(live)
            live_line(live, rank, late.now)

    def read() -> None:
        for rank in read_run(folder).ranks.values():
            steps = [row.step for row in rank.steps]
            assert steps == sorted(set(steps))
            _ = rank.rank

    def repeat(work: Callable[[], object]) -> None:
        while not done():
            try:
                work()
            except PerfkitError as error:
                refusals.append(str(error))
                time.sleep(0.01)
            except Exception as error:  # noqa: BLE001 - what the test is about
                crashes.append("".join(traceback.format_exception(error)))
                return
            reads[0] += 1

    works = (follow, read, lambda: diagnose(folder), lambda: main(["trigger", str(folder)]))
    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crashes == []
    return reads[0], refusals


def read_for(folder: Path, seconds: float) -> None:
    """`read_all` in a process of its own, for that long."""
    end = time.monotonic() + seconds
    reads, _ = read_all(folder, lambda: time.monotonic() > end)
    assert reads > 4


def wait_for(folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not (folder / "rank-0" / "steps.jsonl").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_is_read_while_it_is_written_merged_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    process = writers(folder, 2, 4, {**os.environ})
    wait_for(folder, process)
    began = time.monotonic()
    deleting = threading.Timer(2, lambda: folder.rename(tmp_path / "moved"))
    deleting.start()

    reads, refusals = read_all(folder, lambda: time.monotonic() > began + 2.5)
    assert reads > 4
    gone = ("holds no run", "is not a folder", "does not exist", "No such file", "has no rank 0", "holds an empty run")
    assert [one for one in set(refusals) if not any(word in one for word in gone)] == []
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err.count("Traceback")) == (0, 0), err
    assert "No such file or directory" in out
    capsys.readouterr()


def test_a_run_that_is_moved_to_and_fro_is_read_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, elsewhere = sound_run(tmp_path), tmp_path / "elsewhere"
    end = time.monotonic() + 4

    def move() -> None:
        while time.monotonic() < end:
            folder.rename(elsewhere)
            time.sleep(0.002)
            elsewhere.rename(folder)
            time.sleep(0.003)

    moving = threading.Thread(target=move)
    moving.start()
    reads, refusals = read_all(folder, lambda: time.monotonic() > end)
    moving.join()

    assert reads > 4
    assert refusals
    capsys.readouterr()


def test_the_tensorboard_tab_answers_while_a_run_is_written_and_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_directory, "_FRESH_S", 0.0)
    folder = tmp_path / "logs" / "x"
    apps = Tab(SimpleNamespace(logdir=str(tmp_path / "logs"), flags=None)).get_plugin_apps()
    runs, figures = (Client(apps[route]) for route in ("/runs", "/figures"))

    def answer() -> tuple[list[str], int, dict[str, object]]:
        listed = [run["name"] for run in runs.get("/runs").get_json()["runs"]]
        got = figures.get("/figures?run=x")
        return listed, got.status_code, got.get_json()

    process = writers(folder, 2, 600, {**os.environ})
    try:
        wait_for(folder, process)
        versions = set()
        for _ in range(3):
            versions.add(runs.get("/runs").get_json()["runs"][0]["version"])
            listed, status, data = answer()
            assert (listed, status, "error" in data) == (["x"], 200, False), data
        assert len(versions) == 3  # what was written meanwhile is drawn, not what is cached
        folder.rename(tmp_path / "moved")
        assert process.poll() is None  # it was still being written
        assert answer()[:2] == ([], 404)
    finally:
        process.kill()
        process.communicate()
    (tmp_path / "moved").rename(folder)
    assert answer()[:2] == (["x"], 200)


@pytest.mark.slow
def test_32_ranks_on_a_network_file_system_lose_nothing(tmp_path: Path, injector: Path) -> None:
    folder = tmp_path / "x"
    env = environment(injector, FAULT_NETWORK="1", FAULT_ROOT=str(tmp_path))
    process = writers(folder, 32, 10, env)
    wait_for(folder, process)

    # A file that is being replaced is missing for a moment: then it is reported, or read at the next look.
    reading = f"from tests.faults.test_at_once import *; read_for(Path({str(folder)!r}), 9)"
    reader = subprocess.run(
        [sys.executable, "-c", reading], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert reader.returncode == 0, reader.stderr
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "[]\n", "")
    run = read_run(folder)
    assert [*run.ranks] == [*range(32)]
    assert run.lost == []
    for rank in run.ranks.values():
        assert isinstance(rank, RankFolder)
        assert rank.rank is not None
        assert rank.rank.ending == "finished"
        assert rank.rank.errors == ()
