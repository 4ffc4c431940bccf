"""Runs perfkit's readers on mutated files: ``python tests/hostile/fuzzing.py --inputs 1000000``.

Each reader works in a process of its own, on files in memory, with limits: 10 s of processor time per input, 1 GB of
memory in all. An input is a number: the same one makes the same file of the same sound one. What breaks is printed with
it, once for each place in the code, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfkit.errors import PerfkitError

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []

# This file is also a program, which has its own folder in the path.
from tests.hostile.rank_readers import JobFolders, NodeMetricsFiles  # noqa: E402
from tests.hostile.readers import Events, Exports, Reader, Reports, Snapshots, Traces  # noqa: E402
from tests.hostile.run_readers import Requests, RunFolders  # noqa: E402

READERS: dict[str, type[Reader]] = {
    "kineto": Traces,
    "events": Events,
    "nsys": Exports,
    "ncu": Reports,
    "memory": Snapshots,
    "run": RunFolders,
    "dcgm": NodeMetricsFiles,
    "ranks": JobFolders,
    "tab": Requests,
}
#: Parts of the inputs: a run folder has 19 files, and an export of nsys takes six times as long as a snapshot.
SHARES = {"kineto": 0.09, "events": 0.06, "nsys": 0.06, "ncu": 0.11, "memory": 0.13}
SHARES |= {"run": 0.26, "dcgm": 0.06, "ranks": 0.08, "tab": 0.15}
#: Limits of one input (processor time) and of a reader's process.
MAX_S = 10
MAX_BYTES = 10**9
#: A process that is at the same input for longer than this is ended: of processor time, where no Python runs to notice
#: `MAX_S`, and of the time in which it waits for something. One that only has to wait for a processor is not ended.
MAX_STUCK_S, MAX_WAIT_S = 3 * MAX_S, 3 * MAX_S
#: A process that has not begun with its first input is ended after this: it makes the sound files, of real ones too.
MAX_START_S = 900
#: Different defects after which a process ends.
MAX_DEFECTS = 20
#: In place of the number of an input, before the first.
_NOT_BEGUN = b"\xff" * 8
#: Files are in memory where the system has a folder for that.
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Found(NamedTuple):
    """What became of a number of inputs; each defect is one place in the code. Times are the processor's."""

    reader: str
    inputs: int
    seconds: float
    slowest_s: float
    peak_bytes: int
    defects: list[str]

    def __add__(self, other: Found) -> Found:  # type: ignore[override] - it is a sum, not a longer tuple
        return Found(
            self.reader,
            self.inputs + other.inputs,
            self.seconds + other.seconds,
            max(self.slowest_s, other.slowest_s),
            max(self.peak_bytes, other.peak_bytes),
            self.defects + other.defects,
        )


class TookTooLong(BaseException):
    """An input took more than `MAX_S`; no reader takes it for an error of a file."""


def _late(number: int, frame: Any) -> None:
    raise TookTooLong(f"it took more than {MAX_S} s of processor time")


def peak_bytes() -> int:
    """The largest resident memory of this process so far; `ru_maxrss` has that of the process that started it, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def work(
    reader: str,
    first: int,
    inputs: int,
    seconds: float,
    real: Path | None = None,
    at: bytearray | mmap.mmap | None = None,
    folder: str | None = IN_MEMORY,
) -> Found:
    """Read so many inputs in this process, or as many as the time allows.

    ``at`` always has the number of the input that is read; files are made in a folder of ``folder``.
    """
    at = bytearray(8) if at is None else at
    until, began = time.monotonic() + seconds, time.process_time()
    slowest, defects, number = 0.0, dict[str, str](), first
    limit = max(MAX_BYTES, peak_bytes() + MAX_BYTES // 2) if isinstance(at, bytearray) else MAX_BYTES
    before = signal.signal(signal.SIGPROF, _late)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        subject = READERS[reader](Path(made), real)
        gc.collect()
        gc.freeze()  # the modules: there are more of them than of what an input makes
        for number in range(first, first + inputs):
            at[:8] = number.to_bytes(8, "little")
            start = time.process_time()
            try:
                signal.setitimer(signal.ITIMER_PROF, MAX_S, MAX_S)
                try:
                    subject.one(number)
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
            except PerfkitError:
                pass
            except (Exception, TookTooLong) as error:  # noqa: BLE001 - this is what is looked for
                place = traceback.extract_tb(error.__traceback__)[-1]
                defects.setdefault(
                    f"{type(error)} {place.filename}:{place.lineno}", f"{reader} {number}: {traceback.format_exc()}"
                )
            slowest = max(slowest, time.process_time() - start)
            if (peak := peak_bytes()) > limit:
                defects["memory"] = f"{reader} {number}: {peak >> 20} MiB of memory"
            # The peak of a process stays: the next one reads the rest.
            if "memory" in defects or len(defects) == MAX_DEFECTS or time.monotonic() > until:
                break
        gc.unfreeze()
    signal.signal(signal.SIGPROF, before)
    if slowest > MAX_S and not any(one.startswith(str(TookTooLong)) for one in defects):
        defects.setdefault("time", f"{reader} {first} to {number}: one took {slowest:.0f} s")
    return Found(reader, number - first + 1, time.process_time() - began, slowest, peak_bytes(), [*defects.values()])


def run(
    reader: str,
    first: int,
    inputs: int,
    seconds: float = 1e9,
    real: Path | None = None,
    program: Path = Path(__file__),
) -> Found:
    """Read so many inputs in a process of its own; one that ends it, or at which it stays, is a defect."""
    until, found = time.monotonic() + seconds, Found(reader, 0, 0, 0, 0, [])
    while found.inputs < inputs and time.monotonic() < until and len(found.defects) < MAX_DEFECTS:
        found += _run(reader, first + found.inputs, inputs - found.inputs, until - time.monotonic(), real, program)
    return found


def _run(reader: str, first: int, inputs: int, seconds: float, real: Path | None, program: Path) -> Found:
    """Read inputs up to the last one, or up to one that the process does not survive."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        folder = Path(made)
        (folder / "at").write_bytes(_NOT_BEGUN)
        command = [sys.executable, str(program), "--reader", reader, "--first", str(first), "--inputs", str(inputs)]
        command += ["--minutes", str(seconds / 60), "--child", made]
        command += ["--real", str(real)] if real is not None else []
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["PERFKIT_CACHE_DIR"] = str(folder / "cache")
        with (folder / "err").open("w") as err:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=err)
            try:
                stuck = _wait(process, folder / "at")
            finally:
                process.kill()
                process.wait()
        if process.returncode == 0:
            return Found(*json.loads((folder / "found").read_text()))
        how = f"{stuck or f'the process ended with {process.returncode}'}: {(folder / 'err').read_text()[-5000:]}"
        if (reached := (folder / "at").read_bytes()) == _NOT_BEGUN:
            raise RuntimeError(how)
        number = int.from_bytes(reached, "little")
        defect = f"{reader} {number}: {how}"
        return Found(reader, number - first + 1, 0, 0, 0, [defect])


def _wait(process: subprocess.Popen[bytes], at: Path) -> str:
    """Wait for the end of a process; what it does not get over is returned.

    Limits of an input are of what the process does, not of what others do beside it: processor time, and the time in
    which it was found waiting for something else than a processor.
    """
    began, known, used_s, waited_s = time.monotonic(), _NOT_BEGUN, 0.0, 0.0
    while True:
        looked = time.monotonic()
        try:
            process.wait(1)
            return ""
        except subprocess.TimeoutExpired:
            pass
        try:
            # The fields after the name: the state, and processor time in user mode and in the system's.
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        now, cpu_s = at.read_bytes(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if now == _NOT_BEGUN:
            if time.monotonic() - began > MAX_START_S:
                return f"it was ended after {MAX_START_S} s without an input"
        elif now != known:
            known, used_s, waited_s = now, cpu_s, 0.0
        else:
            waited_s += 0 if fields[0] == "R" else time.monotonic() - looked
            if cpu_s - used_s > MAX_STUCK_S or waited_s > MAX_WAIT_S:
                return f"it was ended after {cpu_s - used_s:.0f} s of processor time and {waited_s:.0f} s of waiting"


def child(reader: str, first: int, inputs: int, seconds: float, real: Path | None, folder: Path) -> None:
    """Read inputs in this process, and write what became of them."""
    # What no limit of a reader stopped must not take the machine's memory.
    own = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (own + 4 * MAX_BYTES, resource.RLIM_INFINITY))
    np.seterr(all="ignore")
    with (folder / "at").open("r+b") as file, mmap.mmap(file.fileno(), 8) as at:
        found = work(reader, first, inputs, seconds, real, at, str(folder))
    (folder / "found").write_text(json.dumps(found))


def main() -> int:
    """Run the readers in turns, and print what became of the inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=60_000, help="Inputs, of all readers. Default: 60,000.")
    parser.add_argument("--minutes", type=float, default=1e9, help="Stop after this time. Default: never.")
    parser.add_argument("--reader", choices=READERS, action="append", help="Run this reader. Default: all.")
    parser.add_argument("--first", type=int, default=0, help="Number of the first input. Default: 0.")
    parser.add_argument("--real", type=Path, help="A folder whose traces and runs are mutated, too.")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    readers = options.reader or [*READERS]
    if options.child:
        limits = (options.inputs, 60 * options.minutes, options.real)
        child(readers[0], options.first, *limits, options.child)
        return 0
    until, total = time.monotonic() + 60 * options.minutes, sum(SHARES[reader] for reader in readers)
    found = {reader: Found(reader, 0, 0, 0, 0, []) for reader in readers}
    rounds = max(1, options.inputs // 100_000)
    for turn in range(rounds):
        for reader in readers:
            wanted = round(options.inputs * SHARES[reader] / total * (turn + 1) / rounds) - found[reader].inputs
            left = until - time.monotonic()
            if wanted > 0 and left > 0:
                one = run(reader, options.first + found[reader].inputs, wanted, left, options.real)
                for defect in one.defects:
                    print(defect, flush=True)
                found[reader] += one
        print("\n".join(line(one) for one in found.values()), flush=True)
    return 1 if any(one.defects for one in found.values()) else 0


def line(found: Found) -> str:
    """What became of a reader's inputs."""
    rate = found.inputs / max(found.seconds, 1e-9)
    return (
        f"{found.reader:8} {found.inputs:>10,} inputs, {rate:,.0f} per second of processor time,"
        f" slowest {found.slowest_s:.2f} s, {found.peak_bytes >> 20} MiB, {len(found.defects)} defects"
    )


if __name__ == "__main__":
    sys.exit(main())
