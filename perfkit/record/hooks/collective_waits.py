"""How long the thread that trains is blocked in collectives, in each step and phase.

Only where a collective blocks the host: gloo and MPI on a CPU. NCCL's run on the device, and the host never waits.

- What Python waits for (a collective of the program's, FSDP's, SyncBatchNorm's; a receive) waits in ``Work.wait``. That
  method of the class is replaced and not the functions of torch.distributed, which Dynamo knows by their identity.
- DistributedDataParallel's Reducer waits for its all-reduces in C++, in a callback that the autograd engine calls at
  the end of the backward. Callbacks run in the order in which they were queued: one that is queued as the backward
  begins runs before the Reducer's, when this rank's last gradient is ready. From then on the backward only waits.
- Its buffers are broadcast from rank 0 before the forward, also in C++, by one function.

Measured on one thread of a shared machine, in turns with torch alone: 0.8 µs for a wait, 27 µs for a backward (of 0.4
ms, 16 parameters); two thirds of the latter are the engine's calls of Python. The Reducer's own logging data says the
same as the callback (12.7 and 13.0 ms), but costs 8 µs with 8 parameters, 19 µs with 300 and 195 µs with 2,000 where
every step is sampled, without what reads it. A communication hook would replace the Reducer's own all-reduce; none is
installed.

Not seen: collectives that are waited for by an op, which are functional ones (DTensor's).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import distributed

from perfkit import _clock, _env
from perfkit._patches import Patches
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.watchers.process_group import ReducedModels, cpu_backend
from perfkit.run.records import Phase, Phases, Waits

#: Backends whose collectives are waited for on the host.
_BLOCKING = ("gloo", "mpi")


class CollectiveWaits:
    """Adds up waits by step and phase while attached.

    Args:
        clock: Knows the running step and phase.
        models: Knows whether the program trains with DistributedDataParallel.
        trouble: Called with what failed here, and its error; what failed is then not measured any more.
    """

    def __init__(self, clock: StepClock, models: ReducedModels, trouble: Callable[[str, BaseException], None]) -> None:
        self._clock = clock
        self._models = models
        self._trouble = trouble
        self._patches = Patches()
        self._now = _clock.now_ns
        self._thread = -1
        #: The first step that was measured from its start; None: none.
        self._since: int | None = None
        self._failed = False
        #: Step -> phase -> ns, since the clock's last start.
        self._ns: dict[int, dict[Phase, int]] = {}
        self._starts = clock.starts
        #: All time in waits so far; when the running backward's last gradient was ready, in which phase, and that time.
        self._total_ns = 0
        self._ready: tuple[int, Phase, int] | None = None
        self._in_backward = False

    def attach_when_ready(self) -> None:
        """Begin once the program has a process group whose collectives block the host; called between two steps.

        A program that has begun to use CUDA since is left alone.
        """
        if self._failed:
            return
        if _env.cuda_in_use():
            self.detach()
            return
        if not self._patches and cpu_backend() in _BLOCKING:
            self._patches.wrap(distributed.distributed_c10d.Work, "wait", self._timed)
            self._patches.wrap(distributed, "_broadcast_coalesced", self._timed)
            self._patches.wrap(torch.autograd, "backward", self._timed_backward)
            self._since = self._clock.step_num
        self._thread = get_ident()

    def detach(self) -> None:
        """Stop measuring; what was measured can still be taken."""
        self._thread = -1
        self._patches.undo()

    def take(self, end: int) -> dict[int, dict[Phase, int]] | None:
        """The waits of the steps before step ``end``, which are over; None: nothing is measured."""
        if self._since is None or _env.cuda_in_use():
            return None
        self._drop_stale()
        taken, self._ns = self._ns, {}
        for step in [one for one in taken if one >= end]:
            self._ns[step] = taken.pop(step)
        return taken

    def of(self, step: int, phases: Phases, taken: dict[int, dict[Phase, int]]) -> Waits | None:
        """The field of a step's row; None: the step began before anything was measured.

        Time before a backward is known as forward only when the backward begins. A wait in it was counted as "other":
        what exceeds that phase belongs to the forward.
        """
        if self._since is None or step < self._since:
            return None
        waits = taken.get(step)
        if waits is None:
            return _NO_WAITS
        beyond = waits.get("other", 0) - (phases.other or 0)
        if beyond > 0:
            waits["other"] -= beyond
            waits["forward"] = waits.get("forward", 0) + beyond
        return Waits(**{phase: ns for phase, ns in waits.items() if ns})

    def _drop_stale(self) -> None:
        if self._starts != self._clock.starts:
            self._starts = self._clock.starts
            self._ns.clear()

    def _add(self, phase: Phase, ns: int) -> None:
        clock = self._clock
        if not clock.running:
            return
        if self._starts != clock.starts:
            self._drop_stale()
        step = clock.step_num
        waits = self._ns.get(step)
        if waits is None:
            waits = self._ns[step] = {}
        waits[phase] = waits.get(phase, 0) + ns
        self._total_ns += ns

    # -- what waits

    def _timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != self._thread:
                return wait(*args, **kwargs)
            began_ns = self._now()
            try:
                return wait(*args, **kwargs)
            finally:
                self._add(self._clock.phase, self._now() - began_ns)

        return timed

    def _timed_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(backward)
        def run_backward(*args: Any, **kwargs: Any) -> None:
            if self._in_backward or get_ident() != self._thread or not self._models or _compiles_backwards():
                backward(*args, **kwargs)
                return
            hook = self._queue_at_start(args[0] if args else kwargs.get("tensors"))
            self._in_backward, self._ready = True, None
            try:
                backward(*args, **kwargs)
            finally:
                ended_ns, ready, self._in_backward = self._now(), self._ready, False
                if hook is not None:
                    hook.remove()
                if ready is not None:
                    at_ns, phase, total_ns = ready
                    # What waits in Python, after the last gradient, is in the sums already.
                    self._add(phase, max(0, ended_ns - at_ns - (self._total_ns - total_ns)))

        return run_backward

    def _queue_at_start(self, tensors: Any) -> Any | None:
        """Have the engine's callback queued when the backward of these tensors begins; returns the hook for that."""
        try:
            node = _first_node(tensors)
            return node.register_prehook(self._at_start) if node is not None else None
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self._fail(error)
            return None

    def _at_start(self, gradients: Any) -> None:
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._at_last_gradient)
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self._fail(error)

    def _at_last_gradient(self) -> None:
        # Read before the clock: the Reducer's own callback comes next.
        self._ready = self._now(), self._clock.phase, self._total_ns

    def _fail(self, error: Exception) -> None:
        self.detach()
        self._failed, self._since = True, None
        self._trouble("measuring how long collectives are waited for", error)


_NO_WAITS = Waits()


def _first_node(roots: Any) -> Any | None:
    """The node of the graph at which the backward of these begins: tensors, or edges, which have their node.

    None where it is not known: an iterator is the backward's to consume.
    """
    node = getattr(roots, "grad_fn", None)
    if node is not None:
        return node  # nearly always: ``loss.backward()``
    # An edge is a tuple, too.
    several = isinstance(roots, (list, tuple)) and not hasattr(roots, "node")
    nodes = (getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in (roots if several else (roots,)))
    return next((node for node in nodes if node is not None), None)


def _compiles_backwards() -> bool:
    """Whether Dynamo traces this call, or compiles the backward, which a hook would become a part of."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return torch.compiler.is_compiling() or bool(getattr(compiled, "compiled_autograd_enabled", False))
