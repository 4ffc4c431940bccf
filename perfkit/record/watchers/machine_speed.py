"""How fast the machine is while a program runs, by four short ops between its steps.

A core is slower while what shares it computes (its sibling, another virtual machine), or at a lower clock. The limits
of the machine are the best that it ever reached; a step can only be as fast as the machine was then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from perfkit.record.program_values import unseen, without_modes
from perfkit.run.records import PROBED_COPY, PROBED_FUNCTION, PROBED_PRODUCT

#: The fastest repeat of all readings counts, as for the limits: the first ones bring what is read into the cache, and a
#: limit that is too low would explain too much.
_REPEATS = 4
#: Ops on one element in a repeat, so that reading the clock does not count.
_OPS = 20

#: With one thread a core that another program has does not count; on Windows that time is known to 16 ms only.
_THREAD_CLOCK = time.get_clock_info("thread_time").resolution <= 1e-6


class MachineSpeed:
    """Times the ops when it is asked to, about 0.6 ms each time. ``times`` are setting -> least ns of one op."""

    def __init__(self) -> None:
        self._ops: dict[str, Callable[[], Any]] = {}
        self._measured: dict[str, int] = {}

    @property
    def times(self) -> dict[str, str]:
        """The shortest times so far, as settings of a rank; empty before the first reading."""
        return {name: str(ns) for name, ns in self._measured.items()}

    @unseen
    def read(self, threads: int) -> None:
        """Time each op with this number of threads."""
        # A program may call this in its inference mode, and what is made there is not written to outside of it.
        with torch.inference_mode(), without_modes():
            self._ops = self._ops or _ops()
            clock = time.thread_time_ns if threads == 1 and _THREAD_CLOCK else time.perf_counter_ns
            for name, run in self._ops.items():
                best = min(_timed(run, clock) for _ in range(_REPEATS)) // (_OPS if name == "speed.op_ns" else 1)
                self._measured[name] = min(best, self._measured.get(name, best))

    def end(self) -> None:
        """Give back the memory of the ops."""
        self._ops = {}


def _timed(run: Callable[[], Any], clock: Callable[[], int]) -> int:
    begin = clock()
    run()
    return clock() - begin


def _ops() -> dict[str, Callable[[], Any]]:
    """The same ops as `perfkit.limits.timed_ops` has, of the same sizes."""
    on_cpu: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    square = [torch.ones(PROBED_PRODUCT, PROBED_PRODUCT, **on_cpu) for _ in range(3)]
    row, result, one = torch.ones(PROBED_COPY, **on_cpu), torch.ones(PROBED_COPY, **on_cpu), torch.ones(1, **on_cpu)
    short, function = row[:PROBED_FUNCTION], result[:PROBED_FUNCTION]

    def ops() -> None:
        for _ in range(_OPS):
            one.neg_()

    return {
        "speed.product_ns": lambda: torch.mm(square[0], square[1], out=square[2]),
        "speed.copy_ns": lambda: result.copy_(row),
        "speed.exp_ns": lambda: torch.exp(short, out=function),
        "speed.op_ns": ops,
    }
