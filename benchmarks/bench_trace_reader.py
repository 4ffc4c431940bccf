"""How fast a trace is read, and in how much memory, beside HTA, json and orjson.

    python benchmarks/bench_trace_reader.py [MEGABYTES]

The trace is built from a small one, in a temporary folder: copies of it one after the other in time, with ids of
their own, until the text has the size (default 800 MB, 3 million events). The small one is a real training trace
where ``../shared/traces`` lies beside the checkout, else one generated here. Copies have few distinct names and
compress unusually well: gzip figures flatter. Every reader runs in a fresh process, which says its own time and
its peak memory (`ru_maxrss`, of which about 45 MB are numpy and msgspec; for more than one process that of the
parent and of the largest worker). HTA takes minutes and runs once; the others three times, the least counts.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REAL = ROOT.parent / "shared" / "traces" / "a100-8ranks-training.json.gz"

#: What `perfkit diagnose` is timed on.
SMALL_MB = 35
MEGABYTES = 800

BIG, PACKED, SMALL = "big.json", "big.json.gz", "small.json"

#: Numbers that a copy moves, beside the ids.
TIME, STEP = b'"ts": ', b"ProfilerStep#"

READERS = {
    "HTA parse_trace_file": "from hta.common.trace import parse_trace_file as read",
    "json.load": "import json\ndef read(path):\n    with open(path, 'rb') as file: json.load(file)",
    "orjson.loads": "import orjson\ndef read(path):\n    with open(path, 'rb') as file: orjson.loads(file.read())",
    **{
        f"perfkit, {count} process{'es' if count > 1 else ''}": "from perfkit.trace import read_trace\n"
        f"def read(path): return read_trace(path, processes={count})"
        for count in (1, 2)
    },
    "perfkit, default": "from perfkit.trace import read_trace as read",
}

PROGRAM = """
import resource, sys, time
{load}
begin = time.perf_counter()
kept = read(sys.argv[1])
took = time.perf_counter() - begin
peak = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print("RESULT", took, *peak, file=sys.stderr)
"""

MEASURES = """
import sys, time
from perfkit.measures.gathering import measure
from perfkit.trace import read_trace
begin = time.perf_counter()
trace = read_trace(sys.argv[1], processes=1)
load = time.perf_counter() - begin
begin = time.perf_counter()
measure(sys.argv[1], read=lambda *_: trace)
print("RESULT", load, time.perf_counter() - begin, file=sys.stderr)
"""


def generated() -> bytes:
    """A step of training with four thousand ops, as Kineto writes it."""
    events = []
    host, device, name = '"pid": 10, "tid": 11', '"pid": 0, "tid": 7', "int, " * 20
    for i in range(4_000):
        at = 1_000_000.125 + 25 * i
        op = (
            f'"Record function id": 0, "Sequence number": {i}, "Fwd thread id": 0, "Ev Idx": {i},\n      '
            f'"Input type": ["float", "float", ""], "Input Dims": [[{64 + i % 8}, 1024], [1024, 1024], []]'
        )
        work = (
            f'"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {i + 1},\n      '
            '"registers per thread": 32, "shared memory": 0, "blocks per SM": 2.5, "warps per SM": 10,\n      '
            f'"grid": [{1 + i % 9}, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 31'
        )
        for cat, what, where, begin, length, args in (
            ("cpu_op", f"aten::op{i % 40}", host, at, 9.25, op),
            ("cuda_runtime", "cudaLaunchKernel", host, at + 1, 4.125, f'"cbid": 211, "correlation": {i + 1}'),
            ("kernel", f"void kernel_{i % 60}<float, {name}int>(float*)", device, at + 12, 11.5, work),
        ):
            events.append(
                f'{{\n    "ph": "X", "cat": "{cat}", "name": "{what}", {where},\n    "ts": {begin:.3f}, '
                f'"dur": {length:.3f},\n    "args": {{\n      "External id": {i + 1}, {args}\n    }}\n  }}'
            )
        events.append(f'{{\n    "ph": "s", "id": {i + 1}, {host}, "ts": {at:.3f}, "cat": "ac2g", "name": "ac2g"\n  }}')
    step = f'{{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", {host},\n    "ts": 1000000.000, '
    events.insert(0, step + '"dur": 100050.000, "args": {\n    }\n  }')
    return ('{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ' + ",\n  ".join(events) + "\n  ]\n}\n").encode()


def replicas(text: bytes, megabytes: int) -> Iterator[bytes]:
    """The text of a trace with its events repeated, each copy later and with ids of its own."""
    begin = re.search(rb'"traceEvents"\s*:\s*\[\s*', text)
    assert begin is not None
    end = text.rindex(b"]")
    events = text[begin.end() : end].rstrip()
    parts = re.split(rb'("(?:ts|correlation|External id|id)": |ProfilerStep#)(\d+)', events)
    labels, numbers = parts[1::3], [int(number) for number in parts[2::3]]
    times = sorted(number for label, number in zip(labels, numbers, strict=True) if label == TIME)
    # Some instants at the end of a recording are absurdly late; all else ends before them.
    span = times[-10] - times[0] + 2_000
    most = 1 + max(number for label, number in zip(labels, numbers, strict=True) if label not in (TIME, STEP))
    yield text[: begin.end()]
    for copy in range(max(1, round(megabytes * 1e6 / len(events)))):
        shifts = {TIME: copy * span, STEP: copy * 100}
        # Correlation 0 means none.
        parts[2::3] = [
            b"%d" % (number + shifts.get(label, copy * most if number else 0))
            for label, number in zip(labels, numbers, strict=True)
        ]
        yield (b",\n  " if copy else b"") + b"".join(parts)
    yield b"\n  " + text[end:]


def build(folder: Path, megabytes: int) -> None:
    """Write the files, and how many events the big one has."""
    source = gzip.decompress(REAL.read_bytes()) if REAL.exists() else generated()
    events = 0
    with (folder / BIG).open("wb") as file, gzip.open(folder / PACKED, "wb", compresslevel=1) as twin:
        for piece in replicas(source, megabytes):
            events += piece.count(b'"ph": ')
            file.write(piece)
            twin.write(piece)
    (folder / SMALL).write_bytes(b"".join(replicas(source, SMALL_MB)))
    (folder / "events").write_text(str(events))


def run(program: str, *arguments: object) -> list[float]:
    """The numbers that a fresh process says behind the word RESULT."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [float(number) for number in done.stderr.split("RESULT")[1].split()]


def main() -> None:
    """Build the trace, run every reader on it, print the tables."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own: a child's peak memory counts from what its parent had when it was started.
        command = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import bench_trace_reader as bench; "
        )
        command += f"bench.build(bench.Path({folder!r}), {megabytes})"
        subprocess.run([sys.executable, "-c", command], check=True)
        big, packed, small = (Path(folder, name) for name in (BIG, PACKED, SMALL))
        events = int(Path(folder, "events").read_text())
        of = "copies of a real training trace" if REAL.exists() else "copies of a generated step"
        print(f"{big.stat().st_size / 1e6:.0f} MB, {events / 1e6:.2f} million events, {of}; {os.cpu_count()} cores.\n")
        read_table(big, packed)
        print()
        diagnose_table(big, small)


def read_table(big: Path, packed: Path) -> None:
    """Time and peak memory of each reader."""
    print("| reader | min s | MB/s | peak MB | HTA's time / this | HTA's peak / this |\n|---|---|---|---|---|---|")
    hta: list[float] = []
    for label, load in READERS.items():
        for file in (big, packed) if label.startswith("perfkit") else (big,):
            rounds = 1 if label.startswith("HTA") else 3
            try:
                found = [run(PROGRAM.format(load=load), file) for _ in range(rounds)]
            except subprocess.CalledProcessError as error:
                print(f"| {label} | not measured: {error.stderr.strip().splitlines()[-1]} | | | | |", flush=True)
                continue
            seconds = min(one[0] for one in found)
            peak = max(one[1] for one in found)
            workers = max(one[2] for one in found)
            hta = hta or [seconds, peak]
            name = label + (", gzip" if file is packed else "")
            memory = f"{peak:.0f}" + (f" + {workers:.0f}" if workers else "")
            ratios = f"{hta[0] / seconds:.1f} | {hta[1] / peak:.1f}" if label.startswith("perfkit") else " | "
            speed = big.stat().st_size / 1e6 / seconds
            print(f"| {name} | {seconds:.2f} | {speed:.0f} | {memory} | {ratios} |", flush=True)


def diagnose_table(big: Path, small: Path) -> None:
    """What comes after reading: the measures, and the whole command."""
    program = "import resource, sys, time, subprocess\nbegin = time.perf_counter()\n" + (
        "subprocess.run([sys.executable, '-m', 'perfkit', 'diagnose', sys.argv[1]], check=True, "
        "stdout=subprocess.DEVNULL)\ntook = time.perf_counter() - begin\n"
        "print('RESULT', took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, file=sys.stderr)"
    )
    print("| what | value |\n|---|---|")
    load, measures = min((run(MEASURES, big) for _ in range(2)), key=sum)
    print(f"| load of the big trace in one process, s | {load:.2f} |")
    print(f"| all measures of it, s | {measures:.2f} |\n| measures / load | {measures / load:.2f} |")
    json_load = min(run(PROGRAM.format(load=READERS["json.load"]), small)[0] for _ in range(3))
    whole = min(run(program, small)[0] for _ in range(3))
    size = f"{small.stat().st_size / 1e6:.0f} MB"
    print(f"| `perfkit diagnose` on {size}, whole process, s | {whole:.2f} |")
    print(f"| json.load of the same file, s | {json_load:.2f} |\n| diagnose / json.load | {whole / json_load:.2f} |")
    seconds, peak = run(program, big)
    print(f"| `perfkit diagnose` on the big trace, s | {seconds:.2f} |\n| its peak memory, MB | {peak:.0f} |")


if __name__ == "__main__":
    main()
