"""Whether the replay of a step is fast, exact, and right about steps without a problem.

    python benchmarks/bench_replay.py [--part tasks|traces|public|simulated|cpu] [--kineto KINETO] [--simulated VENV]
                                      [--cpu FOLDER]

**Tasks.** A generated trace of a million tasks (host pieces and kernels on two streams, launches, syncs, event waits)
becomes a graph and is replayed, in a process of its own. Times are of the processor, apart from the wall time, which
other programs on the machine lengthen.

**Traces.** Each shared trace is replayed as it was recorded; the error is that of the worst step. It says that no
dependency was placed against the recorded times, and nothing about predictions. The critical path is compared with
HTA's on traces that both read: the share of the step in which the path is on the device.

**Public.** The five public pairs of recordings that were found: ResNet-50 with 0 and with 4 loader workers. KINETO is a
clone of github.com/pytorch/kineto with its history; without it only the pair in the shared traces is replayed. Of the
recording after the change the mean and the median step are given: in two one of six steps is 40 and 80 ms longer
than the others. "Naive" is the error of the step minus its data phase, "finding" the saving of input-bound.

**Simulated.** Pairs on the simulated CUDA runtime (tests/gpu/what_if_pairs.py), whose durations are known by
construction. VENV is its environment (`make fake-gpu`).

**CPU.** Programs of the labelled suite's tuning half with a part removed, small ops fused, another optimizer or a
loader worker (`_replay_pairs`): recorded once, the step with the change predicted, and measured in turns in one process
on processor time. "Exact" takes the removed part off by its processor time: its error is the model's alone. "A/A"
is by how much turns without the change differ among themselves. Numbers of the replay were chosen on every second pair
("tuning"), none on the others ("other"), whose results were in sight meanwhile. The "blind" ones were chosen, and first
run, after that; "blind 1" were in sight when the replay of loaders got the hand-over of a batch and that of steps the
hooks of the recording, "blind 2" when it got the latter. FOLDER keeps recordings and measurements; what is there is not
run again.

Where `python -m benchmarks replay` runs this, the environment variables BENCH_KINETO, BENCH_FAKE_GPU and
BENCH_REPLAY_CPU stand for the options; BENCH_SHARED is another place of the shared traces.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import _public_pairs  # noqa: E402 - found through the lines above
import _replay_pairs  # noqa: E402

from perfkit.measures.device._device_work import device_work  # noqa: E402
from perfkit.replay.replaying import critical_path, replay  # noqa: E402
from perfkit.replay.task_graph import task_graph  # noqa: E402
from perfkit.replay.what_if import what_if  # noqa: E402
from perfkit.trace import Kind, Metadata, Trace, Track, read_trace  # noqa: E402

SHARED = Path(os.environ.get("BENCH_SHARED", ROOT.parent / "shared" / "traces"))
TASKS = 1_000_000
PARTS = ("tasks", "traces", "public", "simulated", "cpu")


def made_trace(tasks: int) -> Trace:
    """A trace of this many tasks: each op has a piece before and after its launch, and a kernel."""
    ops = tasks // 4
    index = np.arange(ops, dtype=np.int64)
    # An op of 8 µs with a launch inside, 2 µs of Python after it; a sync after every 1,000.
    start = index * 10_000 + (index // 1_000) * 50_000
    kernel = start + 6_000 + 3_000 * (index % 2)
    busy = np.full(ops, 7_000, np.int64)
    step_of, steps = index // (ops // 20), 20
    first = np.searchsorted(step_of, np.arange(steps))
    last = np.append(first[1:] - 1, ops - 1)
    sync = np.arange(999, ops, 1_000)
    waits = np.arange(10, ops, 50)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("start", "end", "name", "track", "kind", "corr", "dev", "st")
    }

    def add(
        kind: Kind, name: int, begin: Any, end: Any, track: int, corr: Any = -1, device: int = -1, stream: Any = -1
    ) -> None:
        given = (begin, end, name, track, int(kind), corr, device, stream)
        for column, values in zip(columns.values(), given, strict=True):
            column.append(np.broadcast_to(np.asarray(values, np.int64), np.shape(begin)))

    add(Kind.OP, 0, start, start + 8_000, 0)
    add(Kind.RUNTIME, 1, start + 2_000, start + 5_000, 0, index + 1)
    add(Kind.KERNEL, 2, kernel, kernel + busy, 1, index + 1, 0, 7 + 13 * (index % 2))
    add(Kind.RUNTIME, 3, start[sync] + 8_500, start[sync] + 45_000, 0)
    add(Kind.RUNTIME, 4, start[waits] + 500, start[waits] + 1_000, 0)
    add(Kind.RANGE, 5, start[first] - 100, start[last] + 9_900, 0)
    flat = {name: np.concatenate(parts) for name, parts in columns.items()}
    names = ("aten::add", "cudaLaunchKernel", "add_kernel", "cudaDeviceSynchronize", "cudaStreamWaitEvent")
    numbered = tuple(f"ProfilerStep#{number}" for number in range(steps))
    flat["name"] = flat["name"].copy()
    flat["name"][-steps:] = 5 + np.arange(steps)
    none = np.full(flat["start"].size, -1, np.int64)
    return Trace(
        path=Path("made.json"),
        metadata=Metadata(format="kineto"),
        names=(*names, *numbered),
        tracks=(Track(process="1", thread="1"), Track(process="0", thread="7", device=True)),
        start_ns=flat["start"] + 10**6,
        end_ns=flat["end"] + 10**6,
        name=flat["name"].astype(np.int32),
        track=flat["track"].astype(np.int32),
        kind=flat["kind"].astype(np.int8),
        correlation=flat["corr"],
        device=flat["dev"].astype(np.int32),
        stream=flat["st"].astype(np.int32),
        bytes=none,
        sequence=none,
        lost=(),
        args_reader=lambda rows: [{} for _ in rows],
    )


def run_tasks() -> str:
    """One line of JSON: what a million tasks take, in this process."""
    trace = made_trace(TASKS)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, wall = time.process_time(), time.perf_counter()
    graph = task_graph(trace)
    built = time.process_time()
    run = replay(graph)
    replayed = time.process_time()
    path = critical_path(run)
    ended, wall = time.process_time(), time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {
        "tasks": graph.count,
        "build": built - began,
        "replay": replayed - built,
        "path": ended - replayed,
        "wall": wall,
    }
    return json.dumps({**figures, "parts": len(path), "peak_mb": peak / 1e3, "trace_mb": held / 1e3})


def tasks_table() -> Iterator[str]:
    done = subprocess.run(
        [sys.executable, __file__, "--one-million"], capture_output=True, text=True, check=True, env=_environment()
    )
    one = json.loads(done.stdout)
    yield "| tasks | graph | replay | critical path | together | wall time | most memory | of it the trace |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    together = one["build"] + one["replay"] + one["path"]
    yield (
        f"| {one['tasks']:,} | {one['build']:.2f} s | {one['replay']:.2f} s | {one['path']:.2f} s | {together:.2f} s "
        f"| {one['wall']:.2f} s "
        f"| {one['peak_mb']:.0f} MB | {one['trace_mb']:.0f} MB |"
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def traces_table() -> Iterator[str]:
    yield "| trace | tasks | steps | worst step off by | second step's path on the device | HTA's |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for file in sorted(SHARED.glob("*.*")):
        if file.suffix == ".md":
            continue
        trace = read_trace(file)
        graph = task_graph(trace)
        run = replay(graph)
        works = device_work(trace)
        recorded = np.diff(np.max([work.bounds for work in works], axis=0)) if works else None
        if recorded is None or not graph.steps.row.size:
            ends = graph.tasks.ends - graph.origin
            error = float(np.abs(run.over[graph.nodes.node_of_task] - ends).max(initial=0)) / max(1, run.total_ns)
        else:
            error = float(np.abs(run.steps_ns / recorded - 1).max())
        path = critical_path(run)
        # HTA's path is of one step: the second one, where there are several.
        low, high = (run.step_ends[0], run.step_ends[1]) if run.step_ends.size > 1 else (0, int(run.step_ends[0]))
        whole = [max(0, min(part.ends, high) - max(part.starts, low)) for part in path]
        on_device = sum(ns for ns, part in zip(whole, path, strict=True) if part.task >= 0 and part.how == "work")
        yield (
            f"| {file.name} | {graph.count:,} | {graph.steps.row.size or 'none'} | {error:.2%} "
            f"| {on_device / max(1, sum(whole)):.0%} | {hta_share(file)} |"
        )


def hta_share(file: Path) -> str:
    """The share of HTA's critical path on the device, of the second step; why it has none."""
    if file.suffix == ".sqlite":
        return "reads no nsys"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "_hta_path.py"), str(file)],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
    )
    return done.stdout.strip() or f"fails: {(done.stderr.strip().splitlines() or ['no message'])[-1][:60]}"


def public_table(kineto: Path | None) -> Iterator[str]:
    yield "| pair | step now | predicted (interval) | mean step after | error | median step | error | naive | finding |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    if kineto is not None:
        with tempfile.TemporaryDirectory() as folder:
            yield from _public_pairs.rows(kineto, Path(folder))
    else:
        yield _public_pairs.row(
            _public_pairs.PAIRS[0].name, *(SHARED / f"resnet50-workers-{count}.pt.trace.json.gz" for count in (0, 4))
        )
    one, other = SHARED / "a100-8ranks-training.json.gz", SHARED / "v100-2ranks-training.json.gz"
    refused = what_if(one, without=["sync"], against=other)
    yield f"| A100, 8 ranks, and V100, 2 ranks | - | not comparable: {refused.not_comparable} | - | - | - | - | - | - |"


def simulated_table(venv: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, str(ROOT / "tests" / "fake_gpu" / "run.py"), "--venv", str(venv)),
                *(str(ROOT / "tests" / "gpu" / "what_if_pairs.py"), folder),
            ],
            capture_output=True,
            text=True,
            check=True,
            env=_environment(),
        )
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    yield "| pair | step now | predicted | recorded without the problem | error |"
    yield "| --- | --- | --- | --- | --- |"
    for name, (before, ideal, after) in found.items():
        yield (
            f"| {name} | {before / 1e6:.1f} ms | {ideal / 1e6:.1f} ms | {after / 1e6:.1f} ms "
            f"| {ideal / after - 1:+.1%} |"
        )


class Judged(NamedTuple):
    """A prediction next to what was measured, all as shares of the step without the change."""

    kind: str
    half: str
    measured: float
    expected: float
    low: float
    high: float
    exact: float | None
    floor: float

    @property
    def error(self) -> float:
        """Of the prediction."""
        return self.expected / self.measured - 1

    @property
    def held(self) -> bool:
        """Whether the interval has what was measured."""
        return self.low <= self.measured <= self.high

    def cells(self) -> str:
        """The columns of its row of the table."""
        exact = f"{self.exact / self.measured - 1:+.1%}" if self.exact is not None else "-"
        return (
            f"{self.half} | {self.expected:.0%} ({self.low:.0%}-{self.high:.0%}) | {self.measured:.0%} "
            f"| {self.error:+.1%} | {'yes' if self.held else 'no'} | {exact} | {self.floor:+.1%}"
        )


def judged(trial: _replay_pairs.PairTrial, half: str, folder: Path) -> Judged:
    """The prediction of a pair that was recorded and measured."""
    found = json.loads((folder / "turns.json").read_text())
    answer = what_if(folder / "before", **trial.what_if)
    # As shares: of wall time and of processor time, and the machine is not as busy in both.
    low, expected, high = (ns / answer.step_ns for ns in (answer.low_ns, answer.expected_ns, answer.high_ns))
    share = found["then_ns"] / found["now_ns"]
    return Judged(trial.kind, half, share, expected, low, high, found["exact"], found["floor"])


def cpu_table(kept: Path | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as made:
        folder = kept or Path(made)
        subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "_replay_pairs.py"), str(folder)], env=_environment(), check=True
        )
        yield "| program and change | half | predicted step (interval) | measured | error | held | exact | A/A |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
        found: list[Judged] = []
        for number, trial in enumerate(_replay_pairs.TRIALS):
            pair = _replay_pairs.folder_of(folder, trial)
            if not (pair / "turns.json").is_file():
                yield f"| {trial.name} | not measured | - | - | - | - | - | - |"
                continue
            half = f"blind {trial.blind}" if trial.blind else "other" if number % 2 else "tuning"
            found.append(judged(trial, half, pair))
            yield f"| {trial.name} | {found[-1].cells()} |"
    kinds = (*dict.fromkeys(one.kind for one in found), None)
    for half in (*dict.fromkeys(one.half for one in found), None):
        for kind in kinds:
            rows = [one for one in found if half in (one.half, None) and kind in (one.kind, None)]
            if rows:
                yield _summary(f"{half or 'all'}: {kind or 'all'}", rows)


def _summary(title: str, pairs: list[Judged]) -> str:
    errors, floor = (np.abs([getattr(one, name) for one in pairs]) for name in ("error", "floor"))
    exact = [abs(one.exact / one.measured - 1) for one in pairs if one.exact is not None]
    return (
        f"| **{title}, {len(pairs)} pairs** | | | "
        f"| median {np.median(errors):.1%}, p90 {np.percentile(errors, 90):.1%} "
        f"| {np.mean([one.held for one in pairs]):.0%} | {f'median {np.median(exact):.1%}' if exact else '-'} "
        f"| median {np.median(floor):.1%} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--kineto", type=Path, default=os.environ.get("BENCH_KINETO"))
    parser.add_argument("--simulated", type=Path, default=os.environ.get("BENCH_FAKE_GPU", ROOT / ".venv-fake-gpu"))
    parser.add_argument("--cpu", type=Path, default=os.environ.get("BENCH_REPLAY_CPU"))
    parser.add_argument("--one-million", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one_million:
        print(run_tasks())
        return 0
    tables = {
        "tasks": ("A million tasks", tasks_table),
        "traces": ("Recorded steps, replayed as they are", traces_table),
        "public": ("Public pairs of recordings", lambda: public_table(given.kineto)),
        "simulated": ("Pairs on the simulated CUDA runtime", lambda: simulated_table(given.simulated)),
        "cpu": ("Programs of the labelled suite with a change, on a CPU", lambda: cpu_table(given.cpu)),
    }
    for part in [given.part] if given.part else PARTS:
        title, lines = tables[part]
        print(f"**{title}**, load average of the machine {os.getloadavg()[0]:.1f}\n")
        if part == "simulated" and not (given.simulated / "fake_gpu").is_dir():
            print("Not measured: make fake-gpu builds the simulated runtime.\n")
            continue
        print("\n".join(lines()), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
