"""Pairs of training steps whose durations are known by construction: with a problem, and without it.

Kernels last as long as they are told (`torch.cuda._sleep`), the host sleeps; times in ms. Runs on the simulated runtime
and on a GPU, by `tests/gpu/test_what_if_on_gpu.py` and `benchmarks/bench_replay.py`.

    python what_if_pairs.py FOLDER [NAME ...]    records both of each pair, and prints predictions as JSON
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

from perfkit.replay._answering import Change, changed, open_recording
from perfkit.replay.replaying import ReplayRun

#: Of them one is not recorded, and the first that is does not count.
STEPS = 14
#: Cycles of a device's clock in a ms, at 1.98 GHz.
CYCLES = 1_980_000
#: What the small ops of a step take without a recording, in s, and how many are timed for that: an op takes 2 to 5 us,
#: by the machine. With a recording they take 40 ms or more, of a step of 220 ms.
_SMALL_OPS_S, _TIMED_OPS = 0.03, 2_000
#: All durations below are this many times as long: a host on a busy machine is late by some ms after each sync.
LONGER = 3

Step = Callable[[Any], object]


class Pair(NamedTuple):
    """A step with a problem, the same without it, what each reads a batch from, and the change that is the same."""

    step: Callable[[bool], Step]
    change: Change
    batches: Callable[[bool], Any] | None = None


class Prediction(NamedTuple):
    """Steps in ns: with the problem, predicted without it, and recorded without it.

    Each is the shortest of the steps. By construction these are equal, and whatever else runs on the machine lengthens
    them: on 2 cores with 10 busy processes the median step with a hidden loader took 191 and 196 ms where the device
    works for 180 ms, the shortest 181 to 182 ms.
    """

    before: int
    ideal: int
    after: int

    @property
    def error(self) -> float:
        """How far the ideal step is from the recorded one: by construction nothing else gets in the way."""
        return self.ideal / self.after - 1


def device(ms: float) -> None:
    torch.cuda._sleep(int(ms * LONGER * CYCLES))


def host(ms: float) -> None:
    time.sleep(ms * LONGER / 1e3)


class Slow(Dataset[torch.Tensor]):
    """A dataset whose items take 60 ms."""

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, _: int) -> torch.Tensor:
        host(20)
        return torch.zeros(4)


def _batches(fixed: bool) -> Any:
    return DataLoader(Slow(), batch_size=2, num_workers=2 if fixed else 0)


def _loader(_: bool) -> Step:
    def step(batch: Any) -> None:
        device(60)
        torch.cuda.synchronize()

    return step


def _sync(fixed: bool) -> Step:
    loss = torch.zeros((), device="cuda")

    def step(_: Any) -> None:
        for _ in range(2):
            device(20)
            if not fixed:
                loss.item()
            host(10)

    return step


def _small_ops(fixed: bool) -> Step:
    x = torch.zeros(64, device="cuda")
    began = time.perf_counter()
    for _ in range(_TIMED_OPS):
        x.add_(1.0)
    ops = round(_SMALL_OPS_S / (time.perf_counter() - began) * _TIMED_OPS)

    def step(_: Any) -> None:
        with record_function("small"):
            for _ in range(1 if fixed else ops):
                x.add_(1.0)
        device(60)
        torch.cuda.synchronize()

    return step


def _copies(fixed: bool) -> Step:
    # A small copy that waits for the kernel before it: on the simulated runtime the host moves the bytes. On a GPU it
    # would not wait with non_blocking, though from pageable memory: the driver keeps the bytes until it copies them.
    batch = torch.zeros(2**16)
    batch = batch.pin_memory() if fixed else batch

    def step(_: Any) -> None:
        device(40)
        batch.to("cuda", non_blocking=fixed)
        host(30)

    return step


def _slow_op(fixed: bool) -> Step:
    def step(_: Any) -> None:
        with record_function("slow"):
            device(15 if fixed else 30)
        with record_function("other"):
            device(20)

    return step


def _two_streams(fixed: bool) -> Step:
    side = torch.cuda.Stream()

    def step(_: Any) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            device(20)
        with record_function("branch"):
            device(15 if fixed else 40)
        torch.cuda.current_stream().wait_stream(side)
        # Not waited for: after each wait a busy host is late by several ms, and by more after a long one.
        device(5)

    return step


PAIRS = {
    "loader": Pair(_loader, ("hide-loader", None), _batches),
    "sync": Pair(_sync, ("sync", None)),
    "small ops": Pair(_small_ops, ("fuse", "small")),
    "copies": Pair(_copies, ("copy-waits", None)),
    "one slow op": Pair(_slow_op, ("scale", ("slow", 0.5))),
    "two streams": Pair(_two_streams, ("scale", ("branch", 0.375))),
}


def _record(step: Step, batches: Any, file: Path) -> Path:
    """Record the steps after the first one."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    plan = schedule(wait=0, warmup=1, active=STEPS - 2, repeat=1)
    with profile(
        activities=activities, schedule=plan, on_trace_ready=lambda one: one.export_chrome_trace(str(file))
    ) as p:
        for batch in _first(batches if batches is not None else range(STEPS), STEPS):
            step(batch)
            p.step()
    return file


def _first(batches: Any, count: int) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        if number == count:
            return
        yield batch


def predict(name: str, folder: Path) -> Prediction:
    """Record both of a pair, and predict the second from the first."""
    pair = PAIRS[name]
    files = []
    for fixed in (False, True):
        batches = pair.batches(fixed) if pair.batches is not None else None
        torch.cuda.synchronize()
        gc.collect()  # a worker that is forked and frees what other tests left on the device is aborted
        files.append(_record(pair.step(fixed), batches, folder / f"{name.replace(' ', '-')}-{fixed}.json"))
    before, after = map(open_recording, files)
    return Prediction(
        _undisturbed_step(before.base),
        _undisturbed_step(changed(before, [pair.change], interference=False)),
        _undisturbed_step(after.base),
    )


def _undisturbed_step(run: ReplayRun) -> int:
    """The shortest step, without the first one: what was launched before it is in it."""
    return int(run.steps_ns[1:].min())


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(json.dumps({name: predict(name, where) for name in sys.argv[2:] or PAIRS}))
