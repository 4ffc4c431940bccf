"""Measures with torch what this machine could do: ``python -m perfkit.limits.measuring --threads N`` prints it as JSON.

Every measurement is repeated in turns for `BUDGET_S`, and the fastest repeat counts: other programs only ever make one
slower. One thread is timed by its own processor time; a repeat of several during which the system took a core away from
this process does not count.
The figures are those of torch's own ops, called from Python as a program calls them.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from perfkit import _env
from perfkit.limits.limits_cache import METHOD
from perfkit.limits.timed_ops import TimedOps, timed_ops
from perfkit.run.records import CallOverhead, CallOverheads, MachineLimits, Rate, Rates

try:
    import resource
except ImportError:  # Windows does not count involuntary switches: no repeat is known to be disturbed
    resource = None  # type: ignore[assignment]

#: Seconds for all measurements, without the import of torch: twenty turns on two cores of 2023.
BUDGET_S = 2.5
#: A product or convolution that takes longer than this ends its row of sizes: it has reached what large ones reach, and
#: the system lets few longer ones run without an interruption.
_LONG_ENOUGH_S = 0.001
#: An op of one thread that takes longer than this is divided among threads with success on any machine.
_WORTH_THREADS_S = 0.0001
#: A repeat of a short op is a loop of about this long, so that reading the clock does not count.
_REPEAT_S = 0.0002
#: An op is repeated for this long before the next one: a tensor that a cache could hold comes from memory at first, as
#: the ops before it took the cache (an AMD EPYC needed 80 repeats on 1 MiB).
_VISIT_S = 0.002

#: Whether a thread's own processor time is known to a microsecond (on Windows only to 16 ms). It is the time of an op
#: on one thread, without the time in which other programs had the core.
_THREAD_CLOCK = time.get_clock_info("thread_time").resolution <= 1e-6
#: Bytes that an op touches before a call: from the smallest cache to beyond a second-level one; the calls timed after
#: each in a row; and how often all sizes have their turn, since a processor's speed changes by half within a tenth of a
#: second. Together they take half a second to one.
_TOUCHED, _CALLS, _TURNS = tuple(2**power for power in (16, 18, 20, 21, 22, 23)), 3, 16
#: Layers of the backward that is timed so, and what the profiler records of a node with one op: the node, its function
#: and the op.
_LAYERS, _ROWS = 8, 3
#: A number below the smallest normal one of float32, 1.2e-38; and how often an op with and without it is visited.
_SUBNORMAL, _VISITS = 1e-40, 5
#: Tables of ops that work in blocks, so that a larger one is never slower unless it was disturbed.
_IN_BLOCKS = ("products", "convolutions", "depths")


class _Timed:
    """One op, its best time, and whether a repeat was undisturbed."""

    def __init__(self, run: Callable[[], Any], threads: int) -> None:
        self._run = run
        self._alone = threads == 1 and _THREAD_CLOCK
        self._clock = time.thread_time if self._alone else time.perf_counter
        self._loops = 1
        self.best_s = self._best_disturbed_s = float("inf")
        run()  # sets it up: memory, threads, kernels that are made on first use
        self._repeat()
        if self._loops > 1:
            self._repeat()

    @property
    def disturbed(self) -> bool:
        return self.best_s == float("inf")

    @property
    def seconds(self) -> float:
        return self._best_disturbed_s if self.disturbed else self.best_s

    def visit(self) -> None:
        """Repeat the op for `_VISIT_S`, at least once."""
        end_s = time.perf_counter() + _VISIT_S
        self._repeat()
        while time.perf_counter() < end_s:
            self._repeat()

    def _repeat(self) -> None:
        switches = _switches()
        begin = self._clock()
        for _ in itertools.repeat(None, self._loops):
            self._run()
        seconds = (self._clock() - begin) / self._loops
        if seconds <= 0:
            return  # the clock stood still, as that of a thread does in a virtual machine now and then
        if self._alone or switches == _switches():
            self.best_s = min(self.best_s, seconds)
        self._best_disturbed_s = min(self._best_disturbed_s, seconds)
        self._loops = max(1, min(1000, round(_REPEAT_S / self.seconds)))


def _switches() -> int:
    """How often the system took a core from a thread of this process that wanted to run on."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource is not None else 0


class _Reached(NamedTuple):
    """The rate of a group's fastest op, and its time."""

    per_s: float
    seconds: float


class _Turns(NamedTuple):
    """What one number of threads reached: rates by table, name and size; without those that were always disturbed."""

    rates: dict[tuple[str, str, int], _Reached]
    disturbed: bool
    op_s: float
    node_s: float


def measure_limits(threads: int, *, budget_s: float = BUDGET_S) -> MachineLimits:
    """Measure this machine with this number of threads, within about ``budget_s`` seconds.

    One thread is measured too: what several reached while they were disturbed is replaced by as many times what one
    reached, which no machine exceeds.
    """
    before = torch.get_num_threads()
    gc.disable()
    try:
        with torch.no_grad():
            rows = [[*row] for row in timed_ops()]
            one = _turns(rows, 1, budget_s / 2 if threads > 1 else budget_s)
            all_ = _turns(rows, threads, budget_s / 2) if threads > 1 else one
            torch.set_num_threads(1)  # what the thread that calls finds in its caches
            subnormals = _times_with_subnormals()
            overheads = _overheads((one.op_s + max(0.0, one.node_s)) * 1e9 / _ROWS)
    finally:
        gc.enable()
        torch.set_num_threads(before)
    cores = _env.cores()
    names = ("products", "convolutions", "depths", "functions", "layers", "bandwidth")
    tables: dict[str, dict[str, Rates]] = {name: {} for name in names}
    disturbed = one.disturbed
    for (table, name, size), alone in one.rates.items():
        together = all_.rates.get((table, name, size))
        per_s = together.per_s if together is not None else 0.0
        if per_s < alone.per_s:
            # Threads do not slow an op down, unless it is small or they had to wait for a core.
            is_small = alone.seconds < _WORTH_THREADS_S
            per_s = alone.per_s if is_small else alone.per_s * min(threads, cores)
            disturbed |= not is_small
        known = tables[table].get(name, ())
        if known and table in _IN_BLOCKS:
            per_s = max(per_s, known[-1].per_s)
        tables[table][name] = (*known, Rate(size, per_s))
    return MachineLimits(
        method=METHOD,
        host=socket.gethostname(),
        cpu=_env.cpu_name(),
        torch=_env.package_version("torch") or str(torch.__version__),
        threads=threads,
        measured_at_ns=time.time_ns(),
        disturbed=disturbed,
        op_ns=round(min(one.op_s, all_.op_s) * 1e9),
        node_ns=max(0, round(min(one.node_s, all_.node_s) * 1e9)),
        products=tables["products"],
        convolutions=tables["convolutions"],
        depths=tables["depths"],
        functions=tables["functions"],
        layers=tables["layers"],
        bandwidth=tables["bandwidth"],
        overheads=overheads,
        subnormals=subnormals,
    )


def _turns(rows: list[list[TimedOps]], threads: int, budget_s: float) -> _Turns:
    """Repeat all ops in turns until the time is over; with one thread each at least once."""
    torch.set_num_threads(threads)
    end_s = time.perf_counter() + budget_s
    one, nodes = torch.ones(1), 100
    op, backward = _Timed(one.neg_, threads), _Timed(_backward_of(nodes), threads)
    groups: list[tuple[TimedOps, list[_Timed]]] = []
    for row in rows:
        for group in row:
            if threads > 1 and time.perf_counter() > end_s:
                break
            timed = [_Timed(run, threads) for run in group.ops]
            groups.append((group, timed))
            if group.table in _IN_BLOCKS and min(each.seconds for each in timed) > _LONG_ENOUGH_S:
                break
    every = [op, backward, *(each for _, timed in groups for each in timed)]
    while time.perf_counter() < end_s:
        for each in every:
            each.visit()
            if time.perf_counter() > end_s:
                break
    rates = {}
    for group, timed in groups:
        # With one thread there is nothing to put in place of a disturbed rate.
        believed = [each for each in timed if threads == 1 or not each.disturbed]
        # Without the op itself; half of the time remains where noise makes it shorter than an op on one element.
        if believed:
            seconds = min(max(each.seconds - op.seconds, each.seconds / 2) for each in believed)
            rates[group.table, group.name, group.size] = _Reached((group.work or group.size) / seconds, seconds)
    # Each node negates one element, which takes as long as another op.
    node_s = backward.seconds / nodes - op.seconds
    return _Turns(rates, any(each.disturbed for each in every), op.seconds, node_s)


def _times_with_subnormals() -> float:
    """How many times as long a product, or multiplications, take this thread with a tenth of subnormal input."""
    given, weight = torch.ones(1000, 64), torch.ones(64, 96)
    with_subnormals = given.clone()
    with_subnormals[:, ::10] = _SUBNORMAL
    ratios = []
    for op, other in ((torch.mm, weight), (torch.mul, given)):
        usual, slowed = (_Timed(partial(op, one, other), 1) for one in (given, with_subnormals))
        for _ in range(_VISITS):
            usual.visit()
            slowed.visit()
        ratios.append(slowed.seconds / usual.seconds)
    return max(ratios)


def _overheads(row_ns: float) -> dict[str, CallOverheads]:
    """What a call costs after an op that touches memory, by the size of that, of the fastest calls of each turn.

    ``row_ns`` is what an op or a node costs that torch itself calls, with all that it needs in the caches.
    """
    element, leaf = torch.ones(1), torch.ones(1, requires_grad=True)
    memories = [torch.ones(size // 4) for size in _TOUCHED]
    kinds: list[Callable[[Tensor], list[float]]] = [
        partial(_after, element.neg_),
        partial(_after, leaf.neg),
        partial(_backward_after, layers=_LAYERS),
        partial(_backward_after, layers=0),
    ]
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    with torch.enable_grad():
        for _ in range(_TURNS):
            for size, memory in zip(_TOUCHED, memories, strict=True):
                for kind, timed in enumerate(kinds):
                    times[size, kind].append(min(timed(memory)))
    found: dict[str, list[CallOverhead]] = {"op": [], "call": [], "inner": []}
    warm_s = 0.0
    for size in _TOUCHED:
        op, node, with_layers, without = (times[size, kind] for kind in range(len(kinds)))
        found["op"].append(CallOverhead(size, min(op) * 1e9))
        found["call"].append(CallOverhead(size, max(0.0, _difference(node, op)) * 1e9))
        layers_s = _difference(with_layers, without)
        warm_s = warm_s or layers_s
        slowed = max(1.0, layers_s / warm_s) if warm_s > 0 else 1.0
        found["inner"].append(CallOverhead(size, row_ns * slowed))
    return {name: tuple(rows) for name, rows in found.items()}


def _difference(longer: list[float], shorter: list[float]) -> float:
    """Between times of the same turns, at one speed of the processor: the median, which few delays change."""
    return sorted(one - other for one, other in zip(longer, shorter, strict=True))[len(longer) // 2]


def _after(run: Callable[[], Any], memory: Tensor) -> list[float]:
    times = []
    for _ in range(_CALLS):
        memory.abs_()
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


class _Touch(torch.autograd.Function):
    """Touches memory in the backward."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, memory: Tensor) -> Tensor:
        ctx.memory = memory
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.memory.abs_()
        return gradient, None


def _backward_after(memory: Tensor, layers: int) -> list[float]:
    """The backward through small linear layers, where ``memory`` is touched `_LAYERS` times in it."""
    given, weight = torch.ones(4, 16, requires_grad=True), torch.ones(16, 16, requires_grad=True)
    times = []
    for _ in range(_CALLS):
        end = given
        for layer in range(_LAYERS):
            given_to = functional.linear(end, weight) if layer < layers else end
            end = _Touch.apply(given_to, memory)  # type: ignore[no-untyped-call]
        end = end.sum()
        begin = time.perf_counter()
        torch.autograd.grad(end, (given, weight) if layers else given)
        times.append(time.perf_counter() - begin)
    return times


def _backward_of(nodes: int) -> Callable[[], Any]:
    """A backward through this number of nodes, each of which negates one element."""
    with torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True)
        end = leaf
        for _ in range(nodes):
            end = end.neg()
    return partial(torch.autograd.grad, end, leaf, retain_graph=True)


def main() -> None:
    """Print the limits with ``--threads`` threads as JSON."""
    parser = argparse.ArgumentParser(prog="python -m perfkit.limits.measuring", description=__doc__)
    parser.add_argument("--threads", type=int, required=True, metavar="N", help="Measure with N threads of torch.")
    limits = measure_limits(parser.parse_args().threads)
    sys.stdout.write(msgspec.json.encode(limits).decode())


if __name__ == "__main__":
    main()
