"""What a range costs, beside nvtx.annotate, torch's record_function and Lightning's SimpleProfiler.

    python benchmarks/bench_range.py

All candidates of a state run interleaved in one process, in blocks of ten unrolled statements, in reversed
order every other round, with the garbage collector off. Numbers are ns per enter and exit: minimum and
median of the rounds. ``with`` forms are net of the loop that holds them; calls are not. A ratio is that of
the minima. The state "nvtx" runs in a process of its own under a tool that receives every call and keeps
nothing (tests/ranges/nvtx_injection.c); without gcc it is left out, and said.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STATES = ("off", "nvtx", "profiler", "recorder")

#: Rounds per state, and loops of ten statements per round: a round of the cheapest takes some milliseconds, so
#: that the clock does not matter and a round without a disturbance is among them.
ROUNDS = 25
LOOPS = 2_000


def candidates(state: str) -> list[tuple[str, str, str | None]]:
    """(label, statement, label of the peer it is compared with) for a state."""
    common = [
        ("bare call `f()`", "bare()", None),
        ("`@perfkit.range` f()", "decorated()", "bare call `f()`"),
    ]
    ours = [("`with perfkit.range('x')`", "with perfkit.range('x'): pass"), ("`with r`, kept", "with kept: pass")]
    if state == "off":
        peer = "`with nvtx.annotate('x')`"
        return [
            *common,
            *((label, statement, peer) for label, statement in ours),
            ("`with perfkit.range('x', color='red')`", "with perfkit.range('x', color='red'): pass", peer),
            ("`with perfkit.range('x', payload=3)`", "with perfkit.range('x', payload=3): pass", peer),
            (peer, "with nvtx.annotate('x'): pass", None),
            ("`with record_function('x')`", "with record_function('x'): pass", None),
            ("`with SimpleProfiler.profile('x')`", "with lightning.profile('x'): pass", None),
        ]
    if state == "nvtx":
        peer = "`with nvtx.annotate('x')`"
        return [
            common[0],
            ("`@perfkit.range` f()", "decorated()", "`@nvtx.annotate` f()"),
            ("`@nvtx.annotate` f()", "annotated()", None),
            *((label, statement, peer) for label, statement in ours),
            (peer, "with nvtx.annotate('x'): pass", None),
            (
                "`with perfkit.range('x', payload=3)`",
                "with perfkit.range('x', payload=3): pass",
                "`with nvtx.annotate('x', payload=3)`",
            ),
            ("`with nvtx.annotate('x', payload=3)`", "with nvtx.annotate('x', payload=3): pass", None),
        ]
    if state == "profiler":
        peer = "`with record_function('x')`"
        return [
            common[0],
            ("`@perfkit.range` f()", "decorated()", "`@record_function` f()"),
            ("`@record_function` f()", "recorded()", None),
            *((label, statement, peer) for label, statement in ours),
            (peer, "with record_function('x'): pass", None),
        ]
    peer = "`with SimpleProfiler.profile('x')`"
    return [
        common[0],
        ("`@perfkit.range` f()", "decorated()", peer),
        *((label, statement, peer) for label, statement in ours),
        (peer, "with lightning.profile('x'): pass", None),
    ]


def runner(statement: str, names: dict[str, Any]) -> Callable[[int], None]:
    body = "".join(f"        {statement}\n" for _ in range(10))
    exec(f"def run(loops):\n    for _ in repeat(None, loops):\n{body}", names, made := {})
    return made["run"]


def measure(state: str) -> dict[str, list[float]]:
    """ns per statement of each candidate, one value per round."""
    import itertools

    import nvtx
    from lightning.pytorch.profilers import SimpleProfiler
    from torch.profiler import ProfilerActivity, profile, record_function

    import perfkit
    from perfkit.ranges import start_recorder

    def bare() -> None: ...

    names = {
        "repeat": itertools.repeat,
        "perfkit": perfkit,
        "nvtx": nvtx,
        "record_function": record_function,
        "kept": perfkit.range("kept"),
        "bare": bare,
        "decorated": perfkit.range("decorated")(lambda: None),
        "annotated": nvtx.annotate("annotated")(bare),
        "recorded": record_function("recorded")(bare),
        "lightning": SimpleProfiler(),
    }
    recorder = start_recorder() if state == "recorder" else None
    loops = LOOPS if state != "profiler" else LOOPS // 20
    runs = {label: runner(statement, names) for label, statement, _ in candidates(state)}
    runs["(empty loop)"] = runner("pass", names)
    found: dict[str, list[float]] = {label: [] for label in runs}
    for turn in range(ROUNDS):
        for label, run in list(runs.items())[:: -1 if turn % 2 else 1]:
            profiler = profile(activities=[ProfilerActivity.CPU]) if state == "profiler" else None
            if profiler is not None:
                profiler.start()
            names["lightning"].recorded_durations.clear()
            if recorder is not None:
                recorder.drain()
            gc.collect()
            gc.disable()
            begin = time.perf_counter_ns()
            run(loops)
            found[label].append((time.perf_counter_ns() - begin) / (loops * 10))
            gc.enable()
            if profiler is not None:
                profiler.stop()
    if recorder is not None:
        # Nobody else may drain what is to be timed.
        recorder._stopped.set()
        recorder._drainer.join()
        found["drain, per range"] = [_drain(recorder, names["decorated"]) for _ in range(ROUNDS)]
        recorder.stop()
    return found


def _drain(recorder: Any, decorated: Callable[[], None]) -> float:
    recorder.drain()
    for _ in range(10_000):
        decorated()
    begin = time.perf_counter_ns()
    recorder.drain()
    return (time.perf_counter_ns() - begin) / 10_000


def measure_under_a_tool() -> dict[str, list[float]] | None:
    """`measure("nvtx")` in a process with an NVTX tool; None without gcc."""
    if shutil.which("gcc") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "injection.so")
        source = ROOT / "tests" / "ranges" / "nvtx_injection.c"
        headers = Path(*find_spec("nvidia.cu13").submodule_search_locations, "include")  # the wheel nvidia-nvtx
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", f"-I{headers}", "-o", library, source], check=True)
        environment = {**os.environ, "NVTX_INJECTION64_PATH": str(library)}
        environment.pop("NVTX_LOG", None)
        program = "import json, bench_range; print(json.dumps(bench_range.measure('nvtx')))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])},
            capture_output=True,
            text=True,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]  # what measure returned


def table(state: str, found: dict[str, list[float]]) -> list[str]:
    """Rows of the markdown table for one state."""
    statements = {label: (statement, peer) for label, statement, peer in candidates(state)}
    loop = min(found.pop("(empty loop)"))

    def net(label: str) -> tuple[float, float]:
        values = found[label]
        off = loop if statements.get(label, ("", None))[0].startswith("with") else 0.0
        return min(values) - off, statistics.median(values) - off

    rows = []
    for label in found:
        least, median = net(label)
        peer = statements.get(label, ("", None))[1]
        ratio = f"{least / net(peer)[0]:.2f} x {peer}" if peer else ""
        rows.append(f"| {state} | {label} | {least:.1f} | {median:.1f} | {ratio} |")
    return rows


def main() -> None:
    """Measure every state and print one markdown table."""
    print("| state | what | min ns | median ns | ratio of minima |\n|---|---|---|---|---|")
    for state in STATES:
        found = measure_under_a_tool() if state == "nvtx" else measure(state)
        if found is None:
            print("| nvtx | not measured: gcc is not installed | | | |")
        else:
            print("\n".join(table(state, found)), flush=True)


if __name__ == "__main__":
    main()
