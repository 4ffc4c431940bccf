"""Settings as they are between the steps, and optimizers as they are seen: read now and then, never changed.

A setting that is on for some steps only (``with detect_anomaly():``) is off again when the run ends, so it is read
where steps end: a few microseconds, at most once in ten steps.
"""

from __future__ import annotations

import os
import statistics
import time
import weakref
from collections.abc import Callable
from typing import Any

from perfkit import _env
from perfkit._location import Location
from perfkit.record.samplers.source_lookup import calls_of, user_files
from perfkit.record.watchers.tensor_leaks import LocalGraphs
from perfkit.run.records import OptimizerFacts

#: Functions and keywords whose calls are looked up in the user's source, so that a finding names the line.
_CALLS = (
    "set_detect_anomaly",
    "detect_anomaly",
    "use_deterministic_algorithms",
    "deterministic",
    "set_num_threads",
    "zero_grad",
    "set_to_none",
    "collate_fn",
    "DataLoader",
)
#: Repetitions of a measurement between two steps.
_TRIES = 5
#: Looks at which something is priced: 50 ms apart or more, so that a neighbour's slow spell covers not all.
_PRICED_LOOKS = 8
#: Numbers that torch gives a thread at least (at::internal::GRAIN_SIZE), and threads that are measured: 64 MB at most.
_GRAIN = 32_768
_MOST_THREADS = 512
#: Evaluation batches after which an evaluation is looked at no more.
_EVALUATIONS = 20
#: Optimizers that are described.
_OPTIMIZERS = 16


class Inspection:
    """What was seen of the settings between steps. ``optimizers`` are those that have stepped, kept by others."""

    def __init__(self, optimizers: list[Any]) -> None:
        self._optimizers = optimizers
        self._looks = 0
        #: What was priced -> the price at each look, ns.
        self._prices: dict[str, list[int]] = {}
        self._seen: dict[str, int] = {}
        self._values: dict[str, str] = {}
        self._gradients: weakref.ref[Any] | None = None
        self._keeps_gradients: bool | None = None
        self._described: dict[int, OptimizerFacts] = {}
        self._calls: dict[str, tuple[Location, ...]] | None = None
        self._cpu: tuple[int, int] | None = None
        self._cpu_ns = self._cpu_steps = 0
        self._evaluations = 0
        self._graphs = LocalGraphs()
        self.evaluated_with_grad: Location | None = None

    def look(self, step: int, *, timed: bool) -> None:
        """Read the settings as they are before ``step``; ``timed``: the steps since the last look were ordinary."""
        import torch

        cpu_ns = time.process_time_ns()
        if timed and self._cpu is not None:
            self._cpu_ns += cpu_ns - self._cpu[1]
            self._cpu_steps += step - self._cpu[0]
        self._cpu = step, cpu_ns
        self._looks += 1
        on = {
            "torch.anomaly_enabled": torch.is_anomaly_enabled(),
            "torch.deterministic": torch.are_deterministic_algorithms_enabled(),
            "torch.fill_uninitialized": getattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
            "cudnn.benchmark": torch.backends.cudnn.benchmark,
            "cudnn.deterministic": torch.backends.cudnn.deterministic,
        }
        for name, is_on in on.items():
            self._seen[name] = self._seen.get(name, 0) + bool(is_on)
        self._values["torch.num_threads"] = str(torch.get_num_threads())
        self._look_at_gradients()
        if self._looks <= _PRICED_LOOKS and _too_many_threads():
            self._price("threads.beyond_ns", _cost_of_threads())
        if self._looks <= _PRICED_LOOKS and on["torch.anomaly_enabled"]:
            self._price("anomaly.stack_ns", _stack_cost())
        for optimizer in self._optimizers[:_OPTIMIZERS]:
            if id(optimizer) not in self._described:
                self._described[id(optimizer)] = _describe(optimizer)

    def _price(self, name: str, ns: int) -> None:
        """Keep the median of several prices: a neighbour's slow spell lasts longer than one look."""
        self._prices.setdefault(name, []).append(ns)
        self._values[name] = str(round(statistics.median(self._prices[name])))

    def look_at_evaluation(self, *, goes_on: bool) -> None:
        """Look for the graph of the last batch where an evaluation asks for its next one.

        Only where it ``goes_on``: before its first batch there may be graphs of the training's.
        """
        self._evaluations += 1
        if self.evaluated_with_grad is not None or self._evaluations > _EVALUATIONS:
            return
        came = self._graphs.look()
        if goes_on:
            self.evaluated_with_grad = came

    def _look_at_gradients(self) -> None:
        """Whether a gradient is the same tensor as at the last look: then it was not set to None in between."""
        groups = self._optimizers[0].param_groups if self._optimizers else ()
        gradient = next((p.grad for group in groups for p in group["params"] if p.requires_grad), None)
        if self._gradients is not None:
            self._keeps_gradients = gradient is not None and self._gradients() is gradient
        self._gradients = weakref.ref(gradient) if gradient is not None else None

    # -- what was seen

    @property
    def cpu_ns_per_step(self) -> int | None:
        """Processor time of this process, all its threads, per ordinary step; None before there were some."""
        return round(self._cpu_ns / self._cpu_steps) if self._cpu_steps else None

    @property
    def settings(self) -> dict[str, str]:
        """Settings as they were in most looks; empty before the first."""
        if not self._looks:
            return {}
        return {name: str(2 * count > self._looks) for name, count in self._seen.items()} | self._values

    @property
    def optimizers(self) -> tuple[OptimizerFacts, ...]:
        """The optimizers that were seen to step."""
        import msgspec

        return tuple(
            msgspec.structs.replace(one, keeps_gradients=self._keeps_gradients) for one in self._described.values()
        )

    def calls(self) -> dict[str, tuple[Location, ...]]:
        """The user's lines that make settings; looked up once, when the run is written for the first time."""
        if self._calls is None and self._looks:
            self._calls = calls_of(_CALLS, user_files())
        return self._calls or {}


def _describe(optimizer: Any) -> OptimizerFacts:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    defaults = getattr(optimizer, "defaults", {})
    return OptimizerFacts(
        kind=type(optimizer).__name__,
        tensors=len(parameters),
        elements=sum(p.numel() for p in parameters),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        foreach=defaults.get("foreach"),
        fused=defaults.get("fused"),
    )


def _stack_cost() -> int:
    """What it takes to write down the stack as anomaly detection does for every node of a graph, in ns."""
    import traceback

    return _median_ns(lambda: traceback.format_list(traceback.extract_stack()))


def _too_many_threads() -> bool:
    import torch

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return not _env.cuda_in_use() and cpus is not None and torch.get_num_threads() > cpus


def _cost_of_threads() -> int:
    """What an operation takes on all threads of the process beyond its work on the CPUs there are, in ns.

    Each thread adds to as many numbers as torch gives it at least; so many on one thread are the work of one.
    """
    import torch

    threads = torch.get_num_threads()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    numbers = torch.zeros(min(threads, _MOST_THREADS) * _GRAIN)
    apart = _median_ns(lambda: numbers[:_GRAIN].add_(1))
    return max(0, _median_ns(lambda: numbers.add_(1)) - apart * min(threads, _MOST_THREADS) // cpus)


def _median_ns(work: Callable[[], Any]) -> int:
    times = []
    for _ in range(_TRIES):
        began = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - began)
    return sorted(times)[len(times) // 2]


def device_bytes() -> dict[str, str]:
    """The memory of each device, by its number; empty on a CPU."""
    if not _env.cuda_in_use():
        return {}
    import torch

    return {
        f"cuda:{index}.total_bytes": str(torch.cuda.get_device_properties(index).total_memory)
        for index in range(torch.cuda.device_count())
    }
