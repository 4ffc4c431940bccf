"""Which ATen ops make the host wait: PyTorch's own samples, and the blocking calls of the CUDA runtime in each.

    python tests/gpu/opinfo_syncs.py table.json

Writes {"torch", "cuda", "device", "ops": {overload: {"calls", "syncs", "reported"}}, "failed": {operator: error}}, and
the ops of this torch into ``perfkit/syncs/dry_run/waiting_ops.py``. Several processes share the operators, and one that
a sample ends, as an assertion in a kernel does, is started again behind it.

A call syncs if it makes one of `BLOCKING`, which torch's profiler records; it is reported if torch's sync debug mode
warns of it. Runs on a GPU and on a simulated CUDA runtime, where what kernels should have written is zero. A wait
inside the C++ of a composite op counts for the op inside it that waited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch._C._autograd import DeviceType
from torch._C._profiler import _RecordFunctionFast as mark  # unlike record_function, calls get links to it
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.syncs.dry_run.op_table import named_ops
from perfkit.syncs.dry_run.waiting_ops import WAITING_OPS

#: Enough for the branches of an op that depend on its arguments; all samples take hours.
SAMPLES = 12
DTYPES = (torch.float32, torch.int64, torch.bool)

#: Calls in which the host waits for the device. cudaFree waits too, but belongs to the allocator and not to the op.
BLOCKING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemcpy2D")

_MARK, _LINE = "perfkit call ", "perfkit line"
_SYNC_TEXT = "called a synchronizing"
_ERROR, _OFF = 2, 0
_DATA = Path(__file__).resolve().parents[2] / "perfkit" / "syncs" / "dry_run" / "waiting_ops.py"


class Event(NamedTuple):
    """An event of the profiler's."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def is_mark(self) -> bool:
        """Whether it is a call of an op that was marked, and not one of the runtime's."""
        return self.name.startswith(_MARK)


def waits_of(do: Callable[[], object]) -> list[Event]:
    """The blocking calls and the marks of what ``do`` runs."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as profiler, mark(_LINE):
        do()
    return line_events(profiler.profiler.kineto_results.events())  # type: ignore[union-attr]  # set by the profiler's end


def line_events(found: Iterable[Any]) -> list[Event]:
    """The blocking calls inside a mark, and the marks, of the profiler's events.

    A call of the runtime has a link to the innermost op or mark around it. One without was made around what is
    measured: the profiler waits for the device at its end. Times do not tell: those of calls come from another clock.
    """
    found = list(found)
    # What is no op or mark, as a kernel or a call without a link, has a number too, of another series.
    began = {one.correlation_id(): one.start_ns() for one in found if _is_op(one)}
    events = []
    for one in found:
        end_ns = one.start_ns() + one.duration_ns()
        link = one.linked_correlation_id()
        if one.name() in BLOCKING and link and link in began:
            events.append(Event(one.name(), began[link], end_ns))
        elif one.name().startswith(_MARK):
            events.append(Event(one.name(), one.start_ns(), end_ns))
    return events


def _is_op(event: Any) -> bool:
    """Whether an event of the profiler's is an op or a mark: on the host, and no call of the runtime or the driver."""
    return event.device_type() == DeviceType.CPU and not event.name().startswith(("cu", "INVALID"))


def waits_by_mark(events: Iterable[Event]) -> dict[int, int]:
    """Number of a marked call -> the blocking calls inside it, for calls with at least one."""
    events = list(events)
    marks = sorted((one for one in events if one.is_mark), key=lambda one: one.start_ns)
    starts = [mark.start_ns for mark in marks]
    found: dict[int, int] = {}
    for wait in (one for one in events if one.name in BLOCKING):
        position = bisect_right(starts, wait.start_ns) - 1
        if position >= 0 and wait.start_ns < marks[position].end_ns:
            number = int(marks[position].name.removeprefix(_MARK))
            found[number] = found.get(number, 0) + 1
    return found


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


class _Calls(TorchDispatchMode):
    """Marks each call of an op with tensors on the device, none of them empty, and notes whether torch reports a sync.

    Each is first called with the debug mode "error", and if that raises, again without it.
    """

    def __init__(self, kind: str, set_debug_mode: Callable[[int], None]) -> None:
        super().__init__()
        self.kind, self.set_debug_mode = kind, set_debug_mode
        #: Overload, whether torch reported a sync, whether it failed, of each call; None for one that is made again.
        self.calls: list[tuple[str, bool, bool] | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = list(_tensors_in(args))
        # Nothing is computed of an empty tensor, so it says nothing of the others.
        if not any(one.device.type == self.kind for one in tensors) or not all(one.numel() for one in tensors):
            return func(*args, **kwargs)
        try:
            self.set_debug_mode(_ERROR)
            return self._call(func, args, kwargs, reported=False)
        except RuntimeError as error:
            if _SYNC_TEXT not in str(error):
                raise
            self.calls[-1] = None
        finally:
            self.set_debug_mode(_OFF)
        return self._call(func, args, kwargs, reported=True)

    def _call(self, func: Any, args: Any, kwargs: Any, *, reported: bool) -> Any:
        number = len(self.calls)
        self.calls.append((str(func), reported, True))
        with mark(f"{_MARK}{number}"):
            result = func(*args, **kwargs)
        self.calls[number] = str(func), reported, False
        return result


def operators() -> list[Any]:
    """PyTorch's descriptions of its operators, with samples."""
    # torch's common_utils imports expecttest for its own tests; nothing here calls it.
    stub: Any = types.ModuleType("expecttest")
    stub.TestCase = object
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


class _OwnSamples(NamedTuple):
    """Calls that PyTorch's samples lack, in the manner of its descriptions; ``op`` gets the tensors of `_tensors`."""

    name: str
    op: Callable[[Any], object]

    def supports_dtype(self, dtype: torch.dtype, kind: str) -> bool:
        return dtype is torch.float32

    def sample_inputs(self, device: str, dtype: torch.dtype) -> Iterator[Any]:
        yield types.SimpleNamespace(input=_tensors(device), args=(), kwargs={})


def _tensors(device: str) -> Any:
    x = torch.linspace(-1, 1, 16).view(4, 4)
    tensors = {
        "x": x,
        "positive": x @ x.T + torch.eye(4),
        "mask": x > 0,
        "index": torch.tensor([0, 2, 1, 3]),
        "long": torch.linspace(0, 1, 3 * 2049).view(3, 2049),
    }
    # Copied: on a simulated runtime no kernel computes values.
    return types.SimpleNamespace(**{name: tensor.to(device) for name, tensor in tensors.items()})


OWN = (
    _OwnSamples("multinomial", lambda t: torch.multinomial(t.positive, 1)),
    _OwnSamples("multinomial, several", lambda t: torch.multinomial(t.positive, 2)),
    _OwnSamples("multinomial with replacement", lambda t: torch.multinomial(t.positive, 2, replacement=True)),
    _OwnSamples("mode of long slices", lambda t: torch.mode(t.long)),
    _OwnSamples("embedding with max_norm", lambda t: functional.embedding(t.index, t.x, max_norm=1.0)),
    _OwnSamples("normal with tensors", lambda t: torch.normal(t.x, t.positive)),
    _OwnSamples("normal with a std tensor", lambda t: torch.normal(0.0, t.positive)),
    _OwnSamples("unique rows", lambda t: torch.unique(t.x, dim=0)),
    _OwnSamples("unique_consecutive rows", lambda t: torch.unique_consecutive(t.x, dim=0)),
    _OwnSamples("bincount", lambda t: torch.bincount(t.index)),
    _OwnSamples("repeat_interleave", lambda t: t.x.repeat_interleave(t.index, dim=0)),
    _OwnSamples("repeat_interleave of a size", lambda t: t.x.repeat_interleave(t.index, dim=0, output_size=6)),
    _OwnSamples("mask index", lambda t: t.x[t.mask]),
    _OwnSamples("index assignment of a number", lambda t: t.x.__setitem__(t.index, 0.0)),
    _OwnSamples("mask assignment of a number", lambda t: t.x.__setitem__(t.mask, 0.0)),
    _OwnSamples("mask assignment", lambda t: t.x.__setitem__(t.mask, t.x[t.x > 0])),
    _OwnSamples("to_sparse", lambda t: t.x.to_sparse()),
    _OwnSamples("coalesce", lambda t: torch.sparse_coo_tensor(t.index[None], t.x[0], (9,)).coalesce()),
    _OwnSamples("nested from a mask", lambda t: torch._nested_tensor_from_mask(t.x[None], t.mask[:1])),
    _OwnSamples("svd", lambda t: torch.linalg.svd(t.positive)),
    _OwnSamples("eigh", lambda t: torch.linalg.eigh(t.positive)),
    _OwnSamples("eig", lambda t: torch.linalg.eig(t.positive)),
    _OwnSamples("eigvals", lambda t: torch.linalg.eigvals(t.positive)),
)


def count_syncs(
    described: Iterable[Any], device: str, set_debug_mode: Callable[[int], None]
) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Overload -> its calls in all samples, those that waited, those of which torch reported that they wait; and
    operator -> error of samples that failed."""
    ops: dict[str, dict[str, int]] = {}
    failed: dict[str, str] = {}
    for operator in described:
        calls = _Calls(torch.device(device).type, set_debug_mode)
        waits = waits_by_mark(waits_of(lambda: _run_samples(operator, device, calls, failed)))  # noqa: B023 - now
        for number, call in enumerate(calls.calls):
            # One that failed without a wait would perhaps have waited later.
            if call is not None and (number in waits or not call[2]):
                counts = ops.setdefault(call[0], {"calls": 0, "syncs": 0, "reported": 0})
                counts["calls"] += 1
                counts["syncs"] += number in waits
                counts["reported"] += call[1]
    return ops, failed


def _run_samples(operator: Any, device: str, calls: _Calls, failed: dict[str, str]) -> None:
    for dtype in DTYPES:
        if not operator.supports_dtype(dtype, torch.device(device).type):
            continue
        samples = islice(operator.sample_inputs(device, dtype), SAMPLES)
        while True:
            try:
                if (sample := next(samples, None)) is None:
                    break
                with calls:
                    operator.op(sample.input, *sample.args, **sample.kwargs)
            except Exception as error:  # noqa: BLE001 - one sample's failure must not end the table
                failed[operator.name] = f"{type(error).__name__}: {error}".splitlines()[0]


def count_part(first: int, end: int) -> None:
    """Count the operators from ``first`` to before ``end``, and print a line of JSON for each."""
    for number, operator in list(enumerate([*operators(), *OWN]))[first:end]:
        counted = count_syncs([operator], "cuda", torch.cuda.set_sync_debug_mode)
        torch.cuda.synchronize()  # raises where a kernel has ended the context
        print(json.dumps([number, *counted]), flush=True)


def _add(counted: dict[str, dict[str, int]], ops: dict[str, dict[str, int]]) -> None:
    for overload, counts in counted.items():
        before = ops.get(overload, {})
        ops[overload] = {kind: before.get(kind, 0) + number for kind, number in counts.items()}


def _part_in_processes(first: int, end: int) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """What `count_part` prints, without the operators that end its process."""
    ops: dict[str, dict[str, int]] = {}
    failed: dict[str, str] = {}
    while first < end:
        command = [sys.executable, __file__, str(first), str(end)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        for line in done.stdout.splitlines():
            number, counted, wrong = json.loads(line)
            _add(counted, ops)
            failed |= wrong
            first = number + 1
        if first < end:
            failed[f"operator {first}"] = f"ended its process with {done.returncode}"
            first += 1
    return ops, failed


def table() -> dict[str, Any]:
    """The table of this machine's GPU and torch."""
    count, processes = len(operators()) + len(OWN), min(8, os.cpu_count() or 1)
    edges = [count * at // processes for at in range(processes + 1)]
    ops: dict[str, dict[str, int]] = {}
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(processes) as pool:
        for counted, wrong in pool.map(_part_in_processes, edges, edges[1:]):
            failed |= wrong
            _add(counted, ops)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(),
        "ops": dict(sorted(ops.items())),
        "failed": failed,
    }


def summary(table: dict[str, Any], named: Iterable[str]) -> dict[str, str]:
    """Op -> "always", "sometimes" or "never" waits: those that wait, and of the others those ``named``."""
    found = {}
    for overload, counts in table["ops"].items():
        space, name, variant = overload.split(".", 2)
        op = f"{space}::{name}" + ("" if variant == "default" else f".{variant}")
        if counts["syncs"] or op in named or op.partition(".")[0] in named:
            found[op] = "always" if counts["syncs"] == counts["calls"] else "sometimes" if counts["syncs"] else "never"
    return found


def unseen(table: dict[str, Any]) -> list[str]:
    """The overloads that waited in calls of which torch's debug mode did not warn."""
    return [overload for overload, counts in table["ops"].items() if counts["syncs"] > counts["reported"]]


def data(versions: dict[str, dict[str, str]]) -> str:
    """The source of ``waiting_ops.py``."""
    lines = [
        '"""Which ATen ops made the host wait, by version of torch.',
        "",
        "Written by ``tests/gpu/opinfo_syncs.py``, which counts the blocking calls of the CUDA runtime in PyTorch's",
        "own samples and some more: ops that waited in each call, in some, and of those that `op_table` names in none.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "WAITING_OPS: dict[str, dict[str, str]] = {",
    ]
    for version, ops in sorted(versions.items(), key=lambda item: [int(part) for part in item[0].split(".")]):
        lines += [
            f'    "{version}": {{',
            *(f'        "{op}": "{waits}",' for op, waits in sorted(ops.items())),
            "    },",
        ]
    return "\n".join([*lines, "}", ""])


def main() -> int:
    """Write the table to the file in the argument."""
    if len(sys.argv) == 3:
        count_part(int(sys.argv[1]), int(sys.argv[2]))
        return 0
    if len(sys.argv) != 2:
        print("usage: python tests/gpu/opinfo_syncs.py FILE.json", file=sys.stderr)
        return 2
    found = table()
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    version = found["torch"].split("+")[0]
    _DATA.write_text(data({**WAITING_OPS, version: summary(found, named_ops())}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
