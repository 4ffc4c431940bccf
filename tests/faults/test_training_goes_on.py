"""What goes wrong around a recording: training goes on, and one sentence says what was lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.commands import main
from perfkit.errors import RunError, UsageError
from perfkit.record.windows import torch_profiler
from perfkit.run.ending import runs, unwritten_end
from perfkit.run.folder_claim import claim_folder
from perfkit.run.rank_writer import RankWriter
from perfkit.run.reading import RankFolder, read_run
from perfkit.run.records import ClockPair, Phases, Rank, Step
from tests.faults.injector import PROGRAMS, environment, fault, run_program


def train(steps: int = 10) -> int:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4)).sum().backward()
        optimizer.step()
    return steps


def rank_of(folder: Path) -> RankFolder:
    return read_run(folder).ranks[0]


# -- the folder cannot be written


@pytest.mark.parametrize(
    "place",
    [
        ("perfkit.run.folder_claim", "os.link", errno.ENOSPC),
        ("pathlib", "Path.mkdir", errno.EROFS),
        ("perfkit.run.atomic", "os.replace", errno.ENOSPC),
        ("pathlib", "Path.write_bytes", errno.ENOSPC),
        ("pathlib", "Path.write_text", errno.ENOSPC),
    ],
    ids=lambda place: place[1],
)
def test_a_program_whose_folder_cannot_be_written_is_not_recorded_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: tuple[str, str, int]
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(place[2], os.strerror(place[2]))

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(f"{place[0]}.{place[1]}", refused)
        with perfkit.profile(tmp_path / "x" / "y", quiet=True, recorders=()) as prof:
            assert train() == 10
            prof.step()

    err = capsys.readouterr().err
    if place[1] == "os.link":  # a file system that has no links is no reason to record nothing
        assert (err, prof.folder) == ("", tmp_path / "x" / "y")
    else:
        assert (prof.folder, prof.off, err.count("\n")) == (None, True, 1)
        assert err.startswith("perfkit: nothing is recorded: ")
        assert os.strerror(place[2]) in err
        assert "training goes on" in err


def test_after_a_refusal_the_next_profile_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with perfkit.profile(tmp_path / "x", quiet=True, recorders=()):
            train(3)
    with perfkit.profile(tmp_path / "x", quiet=True, recorders=()):
        train()

    assert len(rank_of(tmp_path / "x").steps) == 10


def test_a_folder_that_is_a_file_is_a_wrong_argument_and_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")

    with pytest.raises(UsageError, match="is a file"):
        perfkit.profile(tmp_path / "x" / "y")


def test_a_full_disk_at_the_start_leaves_the_program_its_output_and_exit_code(tmp_path: Path, injector: Path) -> None:
    done = run_program(
        injector,
        PROGRAMS / "plain.py",
        tmp_path,
        fault("mkdir", f"{tmp_path}/runs*", error=errno.ENOSPC, sticky=True),
    )

    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == "the program's atexit handler"
    assert done.stderr.startswith("perfkit: nothing is recorded: OSError: [Errno 28] No space left on device")
    assert "never imported torch" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_trace_that_the_disk_had_no_room_for_leaves_no_file(tmp_path: Path) -> None:
    class Profiler:
        def export_chrome_trace(self, path: str) -> None:
            Path(f"{path}.tmp").write_text("half")  # as Kineto does, which then renames it

    with pytest.raises(OSError, match="torch wrote no trace"):
        torch_profiler.export(Profiler(), tmp_path / "window-0.pt.trace.json.gz", 100, "")
    assert list(tmp_path.iterdir()) == []


# -- the program changes its folder


@pytest.mark.parametrize("given", ["x", None])
def test_a_program_that_changes_its_folder_is_recorded_where_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    prof = perfkit.profile(given, quiet=True, recorders=())
    monkeypatch.chdir("elsewhere")
    with prof:
        train(3)
        monkeypatch.chdir(tmp_path)
        train(3)

    assert prof.folder is not None
    assert prof.folder.is_absolute()
    assert prof.folder.parent == (tmp_path if given else tmp_path / "runs")
    assert len(rank_of(prof.folder).steps) == 6
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_a_program_whose_folder_was_deleted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with perfkit.profile(quiet=True, recorders=()):
        assert train(3) == 3


# -- how a run ended that did not write it


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def record(pid: int, host: str | None = None, **more: Any) -> Rank:
    return Rank(rank=0, launch_id="a", host=host or os.uname().nodename, pid=pid, start_ns=0, **more)


def run_of(folder: Path, rank: Rank, steps: int = 20) -> Path:
    writer = RankWriter(folder, 0)
    rows = [Step(step=n, start_ns=n * 10**6, wall_ns=10**6, phases_ns=Phases(other=10**6)) for n in range(steps)]
    writer.append_steps(rows)
    writer.write(rank)
    writer.close()
    return folder


def test_the_verdict_of_a_killed_run_says_that_it_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(tmp_path / "x", record(pid := dead_process()))

    missing = perfkit.diagnose(tmp_path / "x").missing
    assert any(f"the run wrote no end, and its process {pid} is gone: it was killed" in one for one in missing)
    assert main(["diagnose", str(tmp_path / "x")]) == 0
    assert "os._exit" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_was_killed_before_its_first_step_says_so(tmp_path: Path) -> None:
    run_of(tmp_path / "x", record(dead_process()), steps=0)

    with pytest.raises(RunError, match=r"no step was recorded\. The run wrote no end, and its process \d+ is gone"):
        perfkit.diagnose(tmp_path / "x")


def test_a_run_that_goes_on_or_wrote_its_end_was_not_killed(tmp_path: Path) -> None:
    pairs = (ClockPair(0, time.time_ns()),)
    for rank in (record(os.getpid(), clock_pairs=pairs), record(dead_process(), ending="finished")):
        assert unwritten_end(rank, tmp_path) is None
        assert not any("wrote no end" in one for one in perfkit.diagnose(run_of(tmp_path / "x", rank)).missing)


def test_a_process_that_got_the_number_of_the_killed_one_is_not_the_run(tmp_path: Path) -> None:
    long_ago = (ClockPair(0, time.time_ns() - 10**9 * 10**6),)

    assert not runs(record(os.getpid(), clock_pairs=long_ago))
    assert runs(record(os.getpid(), clock_pairs=(ClockPair(0, time.time_ns()),)))


def test_a_killed_child_that_its_parent_has_not_waited_for_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert runs(record(process.pid))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not runs(record(process.pid))
    process.wait()


def test_of_a_run_on_another_machine_only_its_silence_is_known(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "x", record(1, host="elsewhere")) / "rank-0"

    assert unwritten_end(record(1, host="elsewhere"), folder) is None
    for file in folder.iterdir():
        os.utime(file, (0, time.time() - 1000))
    sentence = unwritten_end(record(1, host="elsewhere"), folder)
    assert sentence is not None
    assert "on elsewhere, its process 1 is in a very long step, or was killed" in sentence


# -- Ctrl-C

INTERRUPTED = """
import atexit, os, signal, sys
import torch
from torch.utils.data import DataLoader

atexit.register(print, "the program's atexit handler")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, batch in enumerate(DataLoader(torch.randn(4000, 4), batch_size=4, num_workers=1)):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    if number == 20:
        import multiprocessing
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        if "twice" in sys.argv:
            import perfkit.record.run_recorder as live
            live.RunRecorder.write_limits = lambda *_: os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("arguments", [[], pytest.param(["twice"], marks=pytest.mark.slow)], ids=["once", "twice"])
def test_ctrl_c_ends_the_program_as_without_perfkit(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "train.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "run", "--quiet", "--out", "x", "train.py", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # Where the tests run in a shell's background, a child would inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )

    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "/perfkit/" not in done.stderr
    worker, last = done.stdout.splitlines()
    assert last == "the program's atexit handler"
    with pytest.raises(ProcessLookupError):
        os.kill(int(worker), 0)
    assert ("the verdict was interrupted" in done.stderr) == bool(arguments)


# -- several at once


def test_of_launches_that_start_at_the_same_moment_each_gets_its_own_folder(tmp_path: Path) -> None:
    got: dict[str, list[Path]] = {}
    together = threading.Barrier(12)

    def claim(launch: str) -> None:
        together.wait()
        got.setdefault(launch, []).append(claim_folder(tmp_path / "x", launch, overwrite=False))

    threads = [threading.Thread(target=claim, args=(f"launch-{n % 6}",)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {len(set(folders)) for folders in got.values()} == {1}  # the ranks of a launch agree
    assert len({folders[0] for folders in got.values()}) == 6
    assert not [*tmp_path.rglob(".part-*")]


def test_a_rank_whose_claim_another_one_removes_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def removed(mine: Path, claim: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        claim.write_text("other")
        mine.unlink()
        link(mine, claim)

    monkeypatch.setattr(os, "link", removed)

    assert claim_folder(tmp_path / "x", "launch", overwrite=False) == tmp_path / "x-2"


def test_a_run_that_is_recording_is_not_overwritten(tmp_path: Path) -> None:
    run_of(tmp_path / "x", record(os.getpid(), clock_pairs=(ClockPair(0, time.time_ns()),)))

    assert claim_folder(tmp_path / "x", "new", overwrite=True) == tmp_path / "x-2"
    run_of(tmp_path / "x", record(dead_process()))
    assert claim_folder(tmp_path / "x", "new", overwrite=True) == tmp_path / "x"


def test_a_second_profile_in_the_first_records_nothing_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with perfkit.profile(tmp_path / "outer", quiet=True, recorders=()):
        with perfkit.profile(tmp_path / "inner", quiet=True, recorders=()):
            assert train(4) == 4
        assert train(4) == 4

    assert "another profile is recording already" in capsys.readouterr().err
    assert not (tmp_path / "inner").exists()
    assert len(rank_of(tmp_path / "outer").steps) >= 8


DAEMON = """
import os, sys, time, torch
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
open("writing", "w").write("trained")
os.rename("writing", "done")
"""


@pytest.mark.slow
def test_a_program_that_becomes_a_daemon_trains_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DAEMON)
    command = [sys.executable, "-m", "perfkit", "run", "--quiet", "--out", "x", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.DEVNULL, check=False, timeout=280)

    assert done.returncode == 0
    deadline = time.monotonic() + 120
    while not (tmp_path / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (tmp_path / "done").read_text() == "trained"


# -- sync detection


def count_of(detection: perfkit.syncs.SyncDetector) -> int:
    return sum(event.count for event in detection.events)


def test_what_device_of_names_is_on_the_host_again_after_its_detection() -> None:
    first, second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with perfkit.detect_syncs(mode="dry", device_of=[first]) as earlier:
        first(torch.ones(2)).item()
    with perfkit.detect_syncs(mode="dry", device_of=[second]) as later:
        first(torch.ones(2)).item()
        second(torch.ones(2))

    assert count_of(earlier) == 1
    assert count_of(later) == 0


def test_a_detection_that_continues_and_a_decorated_function_keep_their_marks() -> None:
    model = torch.nn.Linear(2, 1)
    kept = {}

    @perfkit.detect_syncs(mode="dry", device_of=[model])
    def step() -> None:
        if "loss" in kept:
            kept["loss"].item()
        kept["loss"] = model(torch.ones(2)).detach()

    step()
    step()
    assert count_of(step.syncs) == 1  # type: ignore[attr-defined]  # set by the decorator

    detection = perfkit.detect_syncs(mode="dry", device_of=[model])
    for _ in range(2):
        with detection:
            model(torch.ones(2)).item()
    assert count_of(detection) == 2


def test_the_injector_makes_the_nth_call_fail_once(tmp_path: Path, injector: Path) -> None:
    program = "for name in 'abc':\n try: open(name, 'w').close(); print('made')\n except OSError as e: print(e.errno)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(injector, fault("open", f"{tmp_path}/*", nth=2, error=errno.EIO)),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["made", str(errno.EIO), "made"]
