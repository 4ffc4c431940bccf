"""What the guards against faults and hostile files cost: in a step, when a run's files are opened, and on its page.

    python benchmarks/bench_guards.py

Records a loop of small steps in a temporary folder. In its steps after the first window, which are not recorded in any
other way, the calls of the guards on the training thread are counted, and compared with its calls of perfkit's
functions; the counts differ from run to run. Then every file of the run is read as perfkit reads it and with
`Path.read_bytes`, and the run's figures are cleaned and only encoded: in one process, in turns, in reversed order every
other round. The files are in the page cache.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import msgspec
import torch

import perfkit
from perfkit._regular_file import open_regular, read_regular
from perfkit._text import clean, cleaned, escaped_json, printable
from perfkit.reports.figures import figures_of
from perfkit.run.rank_recording import RankRecording

ROUNDS = 200
#: Steps before the count, with the first window, the extra steps and the first verdict; and those counted.
BEFORE, COUNTED = 400, 2_000
HOME = str(Path(perfkit.__file__).parent)
GUARDS: frozenset[CodeType] = frozenset(
    function.__code__
    for function in (RankRecording.guarded, open_regular, read_regular, clean, cleaned, escaped_json, printable)
)


def calls_in_steps(folder: Path) -> tuple[float, float]:
    """Record a run there; returns a step's calls of guards and of all of perfkit's functions, on its own thread."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(32, 64)
    calls: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            calls[frame.f_code] += 1

    window = perfkit.schedule(wait=5, warmup=1, active=2, repeat=1)
    with perfkit.profile(folder, schedule=window, quiet=True) as prof:
        for step in prof.steps(range(BEFORE + COUNTED)):
            if step == BEFORE:
                sys.setprofile(count)
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        sys.setprofile(None)
    return sum(calls[code] for code in GUARDS) / COUNTED, sum(calls.values()) / COUNTED


def interleaved(candidates: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Microseconds of each candidate, by round."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(ROUNDS):
        for name in list(candidates)[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            candidates[name]()
            times[name].append((time.perf_counter() - began) * 1e6)
    return times


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run")
        guards, all_ = calls_in_steps(folder)
        files = [path for path in folder.rglob("*") if path.is_file()]
        figures = figures_of(perfkit.diagnose(folder), folder)
        encoded = figures.to_json().decode()
        plain = msgspec.to_builtins(figures)
        times = interleaved(
            {
                "`Path.read_bytes`": lambda: [path.read_bytes() for path in files],
                "as perfkit reads them": lambda: [read_regular(path, 2**30, inside=folder) for path in files],
                "figures encoded": lambda: msgspec.json.encode(plain),
                "figures cleaned and encoded": lambda: escaped_json(msgspec.json.encode(cleaned(plain)).decode()),
            }
        )
    print(f"Calls on the training thread, over {COUNTED:,} steps between windows:\n")
    print("| calls | per step |\n| --- | --- |")
    print(f"| of guards | {guards:.4f} |\n| of all of perfkit's functions | {all_:.2f} |\n")
    print(f"Microseconds, {ROUNDS} rounds; {len(files)} files of a run, figures of {len(encoded) / 1e3:.0f} kB:\n")
    print("| what | min | median | ratio of the medians |\n| --- | --- | --- | --- |")
    names = list(times)
    for before, after in zip(names[::2], names[1::2], strict=True):
        base = statistics.median(times[before])
        for name in (before, after):
            middle = statistics.median(times[name])
            print(f"| {name} | {min(times[name]):.0f} | {middle:.0f} | {middle / base:.2f} |")


if __name__ == "__main__":
    main()
