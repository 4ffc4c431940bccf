"""Ops of a step whose results nothing reads: the last blocks of a network of which the first ones are used.

The ops of the forward and the memory that they make are a graph. What Python, the backward, the optimizer, a device or
another program reads is needed; so is what exists when a backward begins or the step ends, and what is written into
memory from before the step, as the statistics of a batch norm. An op from which nothing of this is reached is dead.

`ConstantOpLog` hands on the ops of a step, without views: a tensor is known by its storage object, to which a weak
reference is kept. Nothing is reported where a read may have been missed: tensors of subclasses, threads of the
program's, results of functions that are no ops.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from perfkit._code_owner import USER, frame_of, function_name, owner_of, stack_of
from perfkit._patches import Patches
from perfkit._raised_signals import leave_to_program
from perfkit.record.program_values import OWN_KINDS, is_tensor, without_modes
from perfkit.record.samplers.call_paths import Path, Site, location_of
from perfkit.record.samplers.op_paths import calls_on
from perfkit.record.samplers.op_schemas import flattened, schema_of, written_by
from perfkit.record.samplers.source_loops import innermost_loops
from perfkit.run.records import Phase, UnreadResults

#: Phases whose ops may be dead, and are what the forward takes.
COUNTED: tuple[Phase, ...] = ("forward", "other")
#: A smaller share of the ops' time is not reported by the rule.
_FEW = 0.02
#: Norms that write into running statistics, which their schemas do not say; and whether they do is the sixth argument.
_NORMS = frozenset(("native_batch_norm", "batch_norm", "_batch_norm_impl_index", "cudnn_batch_norm", "instance_norm"))
#: Ops that return uninitialized memory, and zeros; and the maximum size of zeros whose contents are checked.
_EMPTY, _ZEROS, _MAX_ZEROS = ("empty", "new_empty"), ("zeros", "new_zeros"), 10_000_000
#: Threads that run functions of the program's.
_POOL = "futures/thread.py"


class _LoggedOp(NamedTuple):
    """An op: the storages that it reads, and those that it makes or writes into."""

    func: Any
    sources: tuple[int, ...]
    results: tuple[int, ...]
    path: Path
    ns: int
    draws: bool
    is_needed: bool


class UnreadResultLog:
    """Follows the results of one step; keeps no tensor alive."""

    def __init__(self) -> None:
        self._ops: list[_LoggedOp] = []
        #: The step's storages by the address of the storage object, which is not used again while it is referred to;
        #: whether each is new and empty or zero so far.
        self._made: dict[int, StorageWeakRef] = {}
        self._new: dict[int, str] = {}
        #: Those of them that may exist still, and are not known to be needed.
        self._open: dict[int, StorageWeakRef] = {}
        #: Storages that something other than an op of the forward reads.
        self._read: set[int] = set()
        self._in_backward = False
        #: Whether a backward has begun: the step trains.
        self._trains = False
        #: Whether a read may have been missed.
        self.lost = False
        self._rows: tuple[UnreadResults, ...] = ()
        self._patches = Patches()

    def start(self) -> None:
        """The step begins."""
        self.lost |= _others_compute()
        self._patches.wrap(threading.Thread, "start", self._starting)

    def _starting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def start(thread: threading.Thread) -> Any:
            # What it reads is not seen; perfkit's own read nothing of the program's.
            self.lost |= not thread.name.startswith("perfkit")
            return method(thread)

        return start

    def add(self, func: Any, inputs: tuple[Any, Any], out: Any, path: Path, ns: int) -> None:
        """An op of the forward has returned ``out`` for these arguments, positional and named; never raises."""
        try:
            self._add(func, inputs, out, path, ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, what the op reads is not known
            self.lost = True
            leave_to_program(error)

    def _add(self, func: Any, inputs: tuple[Any, Any], out: Any, path: Path, ns: int) -> None:
        self._in_backward = False
        schema = schema_of(func)
        read = [one for one in flattened(inputs) if is_tensor(one)]
        written = written_by(schema, inputs)
        results = [one for one in (*flattened(out), *written) if is_tensor(one)]
        if any(type(one) not in OWN_KINDS for one in (*read, *results)):
            self.lost = True  # its own class may run ops that are not seen
            return
        sources = tuple({number for one in read if (number := _number(one)) is not None})
        numbers = tuple(dict.fromkeys(map(_number, results)))
        self._look_at_new(func, [one for one in read if not any(one is other for other in written)])
        outside = any(one is None or (one in sources and one not in self._made) for one in numbers)
        kind = _kind_of_new(func)
        # Memory without contents computes nothing: torch makes some for norms that do not use it.
        is_needed = not numbers or outside or kind == _EMPTY[0] or _is_read_elsewhere(func, inputs[0], results)
        known = tuple(one for one in numbers if one is not None)
        for tensor in results:
            number = _number(tensor)
            if number is None or number in sources:
                self._new.pop(number or 0, None)
            elif number not in self._made:
                self._made[number] = self._open[number] = _reference(tensor)
                if kind is not None:
                    self._new[number] = kind
        self._ops.append(_LoggedOp(func, sources, known, path, ns, schema.draws, is_needed))

    def add_other(self, inputs: tuple[Any, Any], phase: Phase) -> None:
        """An op of the backward, of the optimizer or of a validation got these arguments."""
        self._trains |= phase == "backward"
        if phase == "backward" and not self._in_backward:
            self._keep_existing()
        self._in_backward = phase == "backward"
        self._read.update(
            number for one in flattened(inputs) if is_tensor(one) and (number := _number(one)) is not None
        )

    def add_read(self, tensor: Any) -> None:
        """Python reads a tensor, or hands its memory on; on any thread."""
        if (number := _number(tensor)) is not None:
            self._read.add(number)
            self._new.pop(number, None)  # who has its memory may fill it

    def end(self) -> None:
        """The step is over."""
        self._patches.undo()
        if not self.lost and not _others_compute():
            self._keep_existing()
            self._rows = _rows(self._ops, _needed(self._ops, self._read), trains=self._trains)
        for kept in (self._ops, self._made, self._new, self._open, self._read):
            kept.clear()

    def rows(self) -> tuple[UnreadResults, ...]:
        """The lines that lead to dead ops only, by the time of these."""
        return self._rows

    def _keep_existing(self) -> None:
        """What exists now may be read."""
        self._read.update(number for number, one in self._open.items() if not one.expired())  # type: ignore[no-untyped-call]
        self._open.clear()

    def _look_at_new(self, func: Any, read: list[Any]) -> None:
        """A new tensor that is read before an op writes into it: what has filled it is not seen, nor what that read."""
        name = func.overloadpacket.__name__
        if not self._new or name.endswith("_like") or name.startswith("new_"):
            return
        for tensor in read:
            kind = self._new.pop(_number(tensor) or 0, None)
            if func.namespace != "aten":
                continue  # a collective fills it; all that it reads is needed
            if kind == _EMPTY[0]:
                self.lost |= tensor.numel() > 0
            elif kind == _ZEROS[0] and tensor.numel() <= _MAX_ZEROS:
                with without_modes():
                    self.lost |= bool(tensor.detach().any())


def _number(tensor: Any) -> int | None:
    """The address of its storage object; None of one without a storage: sparse, nested."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return int(tensor.untyped_storage()._cdata)


def _reference(tensor: Any) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's class has no annotations


def _kind_of_new(func: Any) -> str | None:
    """Whether an op returns memory without contents, or zeros."""
    name = func.overloadpacket.__name__
    return next((names[0] for names in (_EMPTY, _ZEROS) if name.startswith(names)), None)


def _is_read_elsewhere(func: Any, arguments: Any, results: list[Any]) -> bool:
    """Whether what an op reads is needed for something else than its results.

    That is by a device, by an op that is not torch's own, by Python as the shape of a result, or in running statistics.
    """
    if func.namespace != "aten" or any(one.device.type != "cpu" for one in results):
        return True
    name = func.overloadpacket.__name__
    if torch.Tag.dynamic_output_shape in func.tags:
        return name != "index" or any(is_tensor(one) and one.dtype.itemsize == 1 for one in arguments[1])
    return name in _NORMS and len(arguments) > 5 and is_tensor(arguments[3]) and bool(arguments[5])


def _others_compute() -> bool:
    """Whether another thread runs the program's code, or waits for some: what it reads is not seen."""
    for thread in threading.enumerate():
        if thread.ident is None or thread.ident == get_ident():
            continue
        files = {code.co_filename for code, _ in stack_of(frame_of(thread.ident))}
        if any(owner_of(file) == USER or file.replace("\\", "/").endswith(_POOL) for file in files):
            return True
    return False


def _needed(ops: list[_LoggedOp], read: set[int]) -> list[bool]:
    """For each op, whether its result is needed."""
    makers: dict[int, list[int]] = {}
    for at, op in enumerate(ops):
        for number in op.results:
            makers.setdefault(number, []).append(at)
    needed = [op.is_needed for op in ops]
    todo = [*read, *(number for op in ops if op.is_needed for number in op.sources)]
    seen: set[int] = set()
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        for at in makers.get(number, ()):
            needed[at] = True
            todo += ops[at].sources
    return needed


def _rows(ops: list[_LoggedOp], needed: list[bool], *, trains: bool) -> tuple[UnreadResults, ...]:
    of_ns = sum(op.ns for op in ops)
    dead_ns = sum(op.ns for op, is_needed in zip(ops, needed, strict=True) if not is_needed)
    # Without a backward, a step most of which is dead is a benchmark's, which computes for the time alone.
    if dead_ns <= _FEW * of_ns or (not trains and 2 * dead_ns > of_ns):
        return ()
    found: dict[Site, list[tuple[_LoggedOp, Site | None]]] = {}
    for op, site, called in _outermost(ops, needed):
        found.setdefault(site, []).append((op, called))
    rows = [_row(site, dead, of_ns) for site, dead in found.items()]
    return tuple(sorted(rows, key=lambda row: -row.host_ns))


def _outermost(ops: list[_LoggedOp], needed: list[bool]) -> list[tuple[_LoggedOp, Site, Site | None]]:
    """Each dead op with the line that leads to it and to dead ones only in one call, and the line inside that call."""
    numbered = _numbered_calls(ops)
    with_needed = {call for calls, is_needed in zip(numbered, needed, strict=True) if is_needed for call in calls}
    found = []
    for op, is_needed, calls in zip(ops, needed, numbered, strict=True):
        if is_needed or not op.path:
            continue
        depth = next((at for at, call in enumerate(calls) if call in with_needed), len(calls) - 1)
        found.append((op, op.path[depth], op.path[depth - 1] if depth else None))
    return found


def _numbered_calls(ops: list[_LoggedOp]) -> list[list[tuple[Path, int]]]:
    """For each op, the calls of functions that lead to it, innermost first: the lines, and the how-manieth by these.

    A call begins where a function that ran several lines is at its first one again, outside of a loop around both; a
    function of one line, where that begins with the same op.
    """
    own: dict[Path, set[int]] = {}
    for op in ops:
        for call, (_, line) in zip(calls_on(op.path), op.path, strict=True):
            own.setdefault(call, set()).add(line)
    #: Call -> its number, what it began with, what came last.
    seen: dict[Path, tuple[int, Any, Any]] = {}
    numbered = []
    for op in ops:
        of_op = []
        for at, call in enumerate(calls_on(op.path)):
            code, line = op.path[at]
            this = (line, None) if len(own[call]) > 1 or at else (line, op.func)
            number, first, before = seen.get(call, (0, this, this))
            if this == first != before and not _in_one_loop(code.co_filename, line, before[0]):
                number += 1
            seen[call] = number, first, this
            of_op.append((call, number))
        numbered.append(of_op)
    return numbered


def _in_one_loop(file: str, *lines: int) -> bool:
    loops = {_loops_of(file).get(line, 0) for line in lines}
    return len(loops) == 1 and loops != {0}


@functools.lru_cache(maxsize=16)
def _loops_of(file: str) -> dict[int, int]:
    return innermost_loops(file)


def _row(site: Site, dead: list[tuple[_LoggedOp, Site | None]], of_ns: int) -> UnreadResults:
    code, line = site
    busiest: Counter[Site] = Counter()
    for op, _ in dead:
        busiest[op.path[0]] += op.ns
    called = {of[0] if of is not None else None for _, of in dead}
    inside = next(iter(called)) if len(called) == 1 else None
    return UnreadResults(
        file=code.co_filename,
        line=line,
        function=function_name(code),
        owner=USER,
        called=function_name(inside) if inside is not None else None,
        busiest=location_of(busiest.most_common(1)[0][0]),
        ops=len(dead),
        host_ns=sum(op.ns for op, _ in dead),
        of_ns=of_ns,
        draws=any(op.draws for op, _ in dead),
    )
