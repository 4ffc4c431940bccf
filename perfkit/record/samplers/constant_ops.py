"""Ops that compute the same in every step, as far as two steps in a row show, and the lines that could do without them.

A dispatch mode numbers values (as a compiler's value numbering does, here over two steps): the number of a result is
made of its op, the plain arguments and the numbers of the tensors that went in. A tensor from before the step has the
number of its object, its version and a sample of its elements (not every op counts a version up); in the second step
only if it is the very object of the first. A result whose number came in the first step as well is the same again. No
number has what draws random numbers, what a graph is built for, what is of a subclass, what is written into a tensor
from before the step, and what is computed from a tensor without a number.

A function of the user's all of whose ops are such is one that could be called once: the line is the one that calls the
outermost function of this kind. Backward, optimizer and validation are not looked at. Only ops on a CPU count, because
on a device the time of an op's call is not that of the op.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit._code_owner import USER, frames_outwards, function_name, line_of, owner_of
from perfkit._location import Location
from perfkit.record.samplers.module_calls import Path, Site, location_of
from perfkit.run.records import ConstantOps, Phase

#: Ops of one step that are looked at: at some 20 µs each, a few seconds of one step.
_MAX_OPS = 100_000
#: Lines that lead to an op.
_MAX_PATH = 16
#: Elements of a tensor from before the step that are compared: ops on lists of tensors change them and leave their
#: version as it was, and so does numpy. It takes some µs.
_SAMPLED = 64
_OWN_KINDS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
#: Owners of frames between an op and who asked for it.
_BENEATH = ("torch", "python", "perfkit")
_NOT_LOOKED_AT = ("backward", "optimizer", "validation")


class ConstantOpLog:
    """Sees the ops of two steps, between `start` and `stop` twice; keeps no tensor alive."""

    def __init__(self, phase: Callable[[], Phase]) -> None:
        self._phase = phase
        self._mode: Any = None
        #: The numbers of the first step's results; None: it has not begun.
        self._before: set[int] | None = None
        self._numbers: set[int] = set()
        #: Tensors from before the first step.
        self._known: dict[int, Callable[[], Any]] = {}
        #: Tensors of the running step: the tensor, its version, and its number, None where it changes.
        self._values: dict[int, tuple[Callable[[], Any], int, int | None]] = {}
        self._ops = 0
        #: Of the second step: the user's lines that led to each constant op, and its time; the code that ran others.
        self._constant: Counter[Path] = Counter()
        self._counts: Counter[Path] = Counter()
        self._changing: set[CodeType] = set()
        self._phases: dict[Path, Phase] = {}
        #: Lines below which ops changed, and those of ``_constant`` whose ops a library other than torch called.
        self._changing_sites: set[Site] = set()
        self._of_library: set[Path] = set()

    def start(self) -> None:
        """The first or the second step begins."""
        self._mode = _ListeningMode(self._add)
        self._mode.__enter__()

    def stop(self) -> None:
        """The step is over."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)
            self._before, self._numbers = self._numbers, set()
            self._values.clear()
            self._ops = 0

    def _add(self, func: Any, types: Any, inputs: tuple[Any, Any], out: Any, took_ns: int) -> None:
        """An op has run; never raises, because the op is the program's."""
        phase = self._phase()
        self._ops += 1
        if phase in _NOT_LOOKED_AT or self._ops > _MAX_OPS:
            return
        try:
            number = self._number_of_op(func, types, inputs)
            if number is not None:
                self._numbers.add(number)
            self._remember(func, inputs, out, number)
        except Exception:  # noqa: BLE001 - arguments of any kind, tensors without versions or memory
            number = None
        if self._before is None or _is_view(func):
            return  # a view computes nothing
        path, is_library = _users_path()
        if not path:
            return  # a library's loop in a process of its own, such as a spawned rank: no line is the user's
        if number in self._before and not _on_device(out):
            self._constant[path] += took_ns
            self._counts[path] += 1
            self._phases.setdefault(path, phase)
            if is_library:
                self._of_library.add(path)
        else:
            self._changing.update(code for code, _ in path)
            self._changing_sites.update(path[:1])

    def _number_of_op(self, func: Any, types: Any, inputs: tuple[Any, Any]) -> int | None:
        if torch.Tag.nondeterministic_seeded in func.tags or any(kind not in _OWN_KINDS for kind in types):
            return None
        if func is torch.ops.aten.lift_fresh.default:
            # torch.tensor(values): a new tensor each time, made of Python's values. A large one is data.
            (tensor,) = inputs[0]
            return hash((_sample_of(tensor), tensor.shape, tensor.dtype)) if tensor.numel() <= _SAMPLED else None
        if not all(map(self._is_made, _written(func, inputs))):
            return None  # what outlives the step is changed
        parts: list[Any] = [func]
        for value in _flat(inputs):
            if isinstance(value, torch.Tensor):
                if value.requires_grad and torch.is_grad_enabled():
                    return None
                value = self._number_of(value)
                if value is None:
                    return None
            elif not isinstance(value, _PLAIN):
                return None
            parts.append((type(value), value))
        return hash(tuple(parts))

    def _number_of(self, tensor: Any) -> int | None:
        reference, version, number = self._values.get(id(tensor), (_dead, 0, None))
        if reference() is tensor:
            return number if version == tensor._version else None
        if self._before is None:
            self._known[id(tensor)] = weakref.ref(tensor)
        elif self._known.get(id(tensor), _dead)() is not tensor:
            return None
        sample = _sample_of(tensor)
        return hash((id(tensor), tensor._version, sample)) if sample is not None else None

    def _is_made(self, tensor: Any) -> bool:
        """Whether an op of this step made the tensor."""
        return self._values.get(id(tensor), (_dead,))[0]() is tensor

    def _remember(self, func: Any, inputs: tuple[Any, Any], out: Any, number: int | None) -> None:
        """Note the numbers of what the op returned and of what it wrote into."""
        written = _written(func, inputs)
        for at, tensor in enumerate(written):
            # Autograd counts the change after this.
            self._set(tensor, (number, "written", at) if number is not None else None, tensor._version + 1)
            if tensor._base is not None:
                before = self._number_of(tensor._base)
                changed = None if None in (before, number) else (before, number, at)
                self._set(tensor._base, changed, tensor._base._version + 1)
        first = next((one for one in _flat(inputs) if isinstance(one, torch.Tensor)), None)
        for at, tensor in enumerate(_flat(out)):
            if isinstance(tensor, torch.Tensor) and not any(tensor is one for one in written):
                version = first._version if _is_view(func) and first is not None else tensor._version
                self._set(tensor, (number, at) if number is not None else None, version)

    def _set(self, tensor: Any, parts: tuple[Any, ...] | None, version: int) -> None:
        number = hash(parts) if parts is not None else None
        self._values[id(tensor)] = (weakref.ref(tensor), version, number)

    def rows(self) -> tuple[ConstantOps, ...]:
        """The lines whose ops, or whose calls, compute the same in each step, by their time."""
        found: dict[tuple[Site, CodeType | None], list[Path]] = {}
        for path in self._constant:
            if path in self._of_library and path[0] in self._changing_sites:
                continue  # a part of what a library does for this line, such as the call of a Trainer: nobody's to edit
            depth = next((at for at, (code, _) in enumerate(path) if code in self._changing), None)
            if depth is not None:
                found.setdefault((path[depth], path[depth - 1][0] if depth else None), []).append(path)
        rows = [self._row(site, called, paths) for (site, called), paths in found.items()]
        return tuple(sorted(rows, key=lambda row: -row.host_ns))

    def _row(self, site: Site, called: CodeType | None, paths: list[Path]) -> ConstantOps:
        code, line = site
        spent: Counter[Site] = Counter()
        for path in paths:
            spent[path[0]] += self._constant[path]
        return ConstantOps(
            file=code.co_filename,
            line=line,
            function=function_name(code),
            owner=USER,
            phase=self._phases[paths[0]],
            called=None
            if called is None
            else Location(file=called.co_filename, line=called.co_firstlineno, function=function_name(called)),
            busiest=location_of(spent.most_common(1)[0][0]),
            ops=sum(self._counts[path] for path in paths),
            host_ns=sum(self._constant[path] for path in paths),
        )


class _ListeningMode(TorchDispatchMode):
    """Calls ``add`` after each op, with its result and its time."""

    def __init__(self, add: Callable[[Any, Any, tuple[Any, Any], Any, int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's class has no annotations
        self._add = add

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The thread's own time: one op of one step is measured, and another program may take the core meanwhile.
        started_ns = time.thread_time_ns()
        out = func(*args, **kwargs)
        self._add(func, types, (args, kwargs), out, time.thread_time_ns() - started_ns)
        return out


def _written(func: Any, inputs: tuple[Any, Any]) -> list[Any]:
    """The tensors that an op writes into."""
    arguments, named = inputs
    written: list[Any] = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.is_write:
            written += _flat(named[argument.name] if argument.name in named else arguments[at : at + 1])
    return written


def _is_view(func: Any) -> bool:
    """Whether the op returns its input's memory, unwritten."""
    return any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)


def _dead() -> Any:
    """Stands for the reference to a tensor that is not known."""
    return None


def _users_path() -> tuple[Path, bool]:
    """The user's lines that lead to the running op, innermost first; whether a library called it for the first one."""
    path: list[Site] = []
    is_library = False
    for frame in frames_outwards(sys._getframe(2)):
        owner = owner_of(frame.f_code.co_filename)
        if owner == USER:
            path.append((frame.f_code, line_of(frame)))
            if len(path) == _MAX_PATH:
                break
        elif not path and owner not in _BENEATH:
            is_library = True
    return tuple(path), is_library


def _flat(value: Any) -> Iterator[Any]:
    """The values in nested tuples, lists and dicts, with a mark for where each begins."""
    if isinstance(value, tuple | list):
        return itertools.chain.from_iterable(map(_flat, value))
    if isinstance(value, dict):
        return itertools.chain.from_iterable((key, *_flat(inner)) for key, inner in value.items())
    return iter((value,))


def _on_device(out: Any) -> bool:
    return any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in _flat(out))


def _sample_of(tensor: Any) -> bytes | None:
    """Some of its elements; None for a tensor that is on a device, or is not one block of memory."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    elements = tensor.detach().reshape(-1)
    step = max(1, elements.numel() // _SAMPLED)
    # A copy: torch resizes no memory that numpy has seen, and FSDP resizes that of its parameters.
    return bytes(elements[::step].clone().view(torch.uint8).numpy())
