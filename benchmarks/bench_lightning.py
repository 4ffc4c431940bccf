"""What perfkit's callback costs a Lightning Trainer between windows, against Lightning's own PyTorchProfiler.

    python benchmarks/bench_lightning.py

One process, one thread and a tiny model, so that a step consists of Lightning and what is added to it. The variants run
interleaved, round by round, in reversed order every other round; the first steps of a fit are skipped. The benchmark
measures the CPU time of the process with all its threads, which on a shared machine varies much less than wall time.
Neither profiler records a trace: their schedules wait. "Idle" counts steps without phases (``phases=False``).
"""

from __future__ import annotations

import gc
import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import PyTorchProfiler
from torch.utils.data import DataLoader

import perfkit
from perfkit.integrations.lightning import ProfilerCallback

ROUNDS = 7
STEPS = 3_200
#: Steps timed together, so that the cost of the clock itself does not matter.
BLOCK = 20
#: Blocks skipped at the beginning, for what happens once, in the first second of a run: perfkit's dry run, its step
#: with stacks, and its first hundred samples at the full rate.
WARM_BLOCKS = 110


class Tiny(LightningModule):
    """One weight matrix of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """A loss that costs nothing."""
        loss: torch.Tensor = self.layer(batch).sum()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The cheapest optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Blocks(Callback):
    """Times blocks of steps."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Read the clock at the end of each block."""
        if batch_idx % BLOCK == 0:
            self.times.append(time.process_time_ns())

    def per_step(self) -> float:
        """ns per step: the lower quartile of the blocks, which the machine's other load changes least."""
        times = self.times[WARM_BLOCKS:]
        blocks = [(end - begin) / BLOCK for begin, end in itertools.pairwise(times)]
        return statistics.quantiles(blocks, n=4)[0]


class Waiting(PyTorchProfiler):
    """Lightning's own profiler with a schedule that never opens; its summary of nothing would raise."""

    def summary(self) -> str:
        """Nothing was recorded."""
        return ""

    def teardown(self, stage: str | None) -> None:
        """Close what was opened, although nothing was recorded."""
        try:
            super().teardown(stage)
        except AssertionError:
            self.profiler = None


def fit(*callbacks: Callback, profiler: Any = None) -> float:
    """Run one fit; returns ns per step."""
    blocks = Blocks()
    trainer = Trainer(
        callbacks=[*callbacks, blocks],
        profiler=profiler,
        max_epochs=1,
        logger=False,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tiny(), DataLoader([torch.ones(4)] * STEPS, batch_size=None))
    return blocks.per_step()


def variants(folder: Path) -> dict[str, Callable[[], float]]:
    """Name -> a function that runs one round and returns ns per step."""
    never = perfkit.schedule(wait=10**9, warmup=0, active=1)
    numbers = iter(range(10**6))

    def ours(**options: Any) -> float:
        return fit(ProfilerCallback(folder / str(next(numbers)), schedule=never, quiet=True, **options))

    def theirs() -> float:
        schedule = torch.profiler.schedule(wait=10**9, warmup=1, active=1)
        return fit(profiler=Waiting(dirpath=folder, filename="theirs", schedule=schedule))

    return {
        "no profiler": fit,
        "a callback that does nothing": lambda: fit(Callback()),
        "ProfilerCallback, idle": lambda: ours(phases=False),
        "ProfilerCallback, with phases": ours,
        "PyTorchProfiler, idle": theirs,
    }


def main() -> None:
    """Measure and print the table."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rounds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        todo = list(variants(Path(folder)).items())
        for number in range(ROUNDS):
            for name, run in todo if number % 2 else reversed(todo):
                gc.collect()
                rounds.setdefault(name, []).append(run())
    minimum = {name: min(rounds[name]) for name, _ in todo}
    base, theirs = minimum["no profiler"], minimum["PyTorchProfiler, idle"]
    print("| Trainer of 4 numbers | min µs/step | median µs/step | added, min µs | of PyTorchProfiler's |")
    print("|---|---|---|---|---|")
    for name, _ in todo:
        added = minimum[name] - base
        share = "" if name == "no profiler" else f"{added / (theirs - base):.3f}"
        print(
            f"| {name} | {minimum[name] / 1e3:.1f} | {statistics.median(rounds[name]) / 1e3:.1f} | "
            f"{added / 1e3:.1f} | {share} |"
        )
    print("\nTargets: idle at most 1/12 (0.083) of PyTorchProfiler's, with phases at most 1/6 (0.167).")


if __name__ == "__main__":
    main()
