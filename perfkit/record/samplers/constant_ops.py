"""Ops that compute the same in every step, as far as two steps in a row show, and the lines that could do without them.

A dispatch mode numbers values (as a compiler's value numbering does, here over two steps): the number of a result is
made of its op, the plain arguments and the numbers of the tensors that went in. A tensor from before the step has the
number of its object, its version and a sample of its elements (not every op counts a version up); in the second step
only if it is the very object of the first. A result whose number came in the first step as well is the same again. What
is written into a tensor from before the step has the number of a sample of what is there afterwards: an average of
weights that are not trained is what it was. No number has what draws random numbers, what a graph is built for, what is
of a subclass, what is written several times per step, and what is computed from a tensor without a number.

A function of the user's all of whose ops are such is one that could be called once: the line is the one that calls the
outermost function of this kind. Backward, optimizer and validation are not looked at. Only ops on a CPU count, because
on a device the time of an op's call is not that of the op.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import msgspec
import torch

from perfkit._code_owner import USER, function_name, owner_of
from perfkit._location import Location
from perfkit._raised_signals import errors_dropped, leave_to_program
from perfkit.record.program_values import OWN_KINDS, SAMPLED, is_tensor, is_tracing, sample_of, unseen
from perfkit.record.samplers.call_paths import Path, Site, location_of
from perfkit.record.samplers.op_inputs import OpInputs
from perfkit.record.samplers.op_listener import OpListener
from perfkit.record.samplers.op_paths import calls_on, made_at, path_of_op
from perfkit.record.samplers.op_schemas import OpSchema, flattened, schema_of, tensors_in, written_by
from perfkit.record.samplers.rebuilt_buffers import RebuiltBuffers
from perfkit.record.samplers.repeated_ops import RepeatedOpLog
from perfkit.record.samplers.unread_results import COUNTED, UnreadResultLog
from perfkit.run.records import ConstantOps, Phase

#: Ops of one step that are looked at: at some 20 µs each, a few seconds of one step.
_MAX_OPS = 100_000
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
#: Libraries whose models and loops nobody edits, and whose modules have no argument to keep what they compute.
_FRAMEWORKS = (
    "transformers",
    "diffusers",
    "trl",
    "peft",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
)
_JOINS = torch.ops.aten.cat.default
_NOT_LOOKED_AT = ("backward", "optimizer", "validation")


class ConstantOpLog:
    """Sees the ops of two steps, between `start` and `stop` twice; keeps no tensor alive."""

    def __init__(self, phase: Callable[[], Phase]) -> None:
        self._phase = phase
        self._listener = OpListener(self._add, self._add_read, self._add_shared)
        #: Of the second step.
        self.inputs = OpInputs()
        self.repeated = RepeatedOpLog()
        self.buffers = RebuiltBuffers()
        self.unread = UnreadResultLog()
        #: The numbers of the first step's results; None: it has not begun.
        self._before: set[int] | None = None
        self._numbers: set[int] = set()
        #: Tensors from before the first step.
        self._known: dict[int, Callable[[], Any]] = {}
        #: Tensors from before the step that the first step wrote into, and their version after that.
        self._rewritten: dict[int, tuple[Callable[[], Any], int]] = {}
        #: Tensors of the running step: the tensor, its version, and its number, None where it changes.
        self._values: dict[int, tuple[Callable[[], Any], int, int | None]] = {}
        #: Of tensors of inference mode, where torch says neither: the number of their memory, what they are views of.
        self._memory: dict[int, tuple[Callable[[], Any], int, Callable[[], Any]]] = {}
        #: How often each memory was written into.
        self._writes: Counter[int] = Counter()
        self._next_memory = itertools.count()
        self._ops = 0
        #: Of the second step: the user's lines that led to each constant op, and its time; the calls and the libraries'
        #: functions in which others ran.
        self._constant: Counter[Path] = Counter()
        self._counts: Counter[Path] = Counter()
        self._changing_calls: set[Path] = set()
        self._changing: set[CodeType] = set()
        self._phases: dict[Path, Phase] = {}
        #: Results of constant ops: the tensor, the lines that led to the op, the library's functions, and its time.
        self._kept: dict[int, tuple[Callable[[], Any], Path, tuple[CodeType, ...], int]] = {}
        #: Lines below which ops changed, and those of ``_constant`` whose ops a library other than torch called.
        self._changing_sites: set[Site] = set()
        self._of_library: set[Path] = set()
        #: The library's functions between the user's line and the op, outermost first.
        self._library_codes: Counter[tuple[Path, tuple[CodeType, ...]]] = Counter()
        self._library_ops: Counter[tuple[Path, tuple[CodeType, ...]]] = Counter()
        #: The outermost of these -> the class of the module whose method it is.
        self._library_modules: dict[CodeType, str] = {}

    def start(self) -> None:
        """The first or the second step begins."""
        self.unread.start()
        self.inputs.saved_views.start()
        self._listener.start()

    def stop(self) -> None:
        """The step is over."""
        if self._listener.stop():
            self.inputs.saved_views.stop()
            with errors_dropped():
                self.unread.end()  # none in the first step
            self._before, self._numbers = self._numbers, set()
            self.buffers.end_step()
            self.inputs.end_step()
            self._values.clear()
            self._memory = {key: known for key, known in self._memory.items() if known[0]() is not None}
            self._ops = 0

    @unseen
    def _add(self, func: Any, types: Any, inputs: tuple[Any, Any], out: Any, took_ns: int) -> None:
        """An op has run; never raises, because the op is the program's."""
        try:
            self._look(func, types, inputs, out, took_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            leave_to_program(error)

    @unseen
    def _add_read(self, tensor: Any) -> None:
        """Python reads a tensor as a whole; never raises."""
        if self._before is not None and not is_tracing() and (path := path_of_op()[0]):
            with errors_dropped():
                self.inputs.add_read(tensor, path[0])

    @unseen
    def _add_shared(self, tensor: Any) -> None:
        """What holds a tensor hands its memory on, or reads it; on any thread; never raises."""
        if self._before is not None:
            with errors_dropped():
                self.unread.add_read(tensor)
                self.inputs.add_shared(tensor)

    def _look(self, func: Any, types: Any, inputs: tuple[Any, Any], out: Any, took_ns: int) -> None:
        phase, written = self._phase(), list[Any]()
        self._ops += 1
        if phase in _NOT_LOOKED_AT or self._ops > _MAX_OPS or is_tracing():
            self.inputs.lost |= self._ops > _MAX_OPS
            self.unread.lost |= self._ops > _MAX_OPS or is_tracing()
            if self._before is not None:
                self.unread.add_other(inputs, phase)
                self.inputs.add_elsewhere(func, inputs, phase, missed=phase not in _NOT_LOOKED_AT)
            return
        try:
            schema, flat = schema_of(func), flattened(inputs)
            written = written_by(schema, inputs)
            number = self._number_of_op(func, schema, types, flat, written)
            if number is not None:
                self._numbers.add(number)
            self._remember(schema, flat, written, out, number)
        except Exception as error:  # noqa: BLE001 - arguments of any kind, tensors without versions or memory
            leave_to_program(error)
            number = None
        is_rebuilt = func is _JOINS and self.buffers.is_next(inputs[0][0], out, self._base_of)
        if _is_view(func, inputs[0], out) or func.namespace == "profiler":
            self.inputs.saved_views.add_view(out)
            return  # a view computes nothing, nor does a range of torch's profiler
        if self._before is None:
            if not written:
                self.inputs.add_earlier(out)
            return
        path, between, module = path_of_op()
        self.unread.add(func, inputs, out, path, took_ns if phase in COUNTED else 0)
        if not path:
            return  # a library's loop in a process of its own, such as a spawned rank: no line is the user's
        self.inputs.add_first(func, inputs, out, path[0], in_library=bool(between))
        if number in self._before and not _on_device(out):
            self._phases.setdefault(path, phase)
            self._count(path, between, took_ns, 1)
            if between:
                self._of_library.add(path)
                if module is not None:
                    self._library_modules[between[0]] = module
            self._kept.update((id(one), (weakref.ref(one), path, between, took_ns)) for one in tensors_in(out))
        else:
            for tensor in written:
                self._uncount(tensor)
                self._uncount(self._base_of(tensor))
            if next(calls_on(path)) not in self._changing_calls:
                self._changing_calls.update(calls_on(path))
            self._changing.update(between)
            self._changing_sites.update(path[:1])
            with_graph = torch.is_grad_enabled() and any(one.requires_grad for one in tensors_in(inputs))
            self.repeated.add(func, inputs[0], out, path, took_ns, with_graph=with_graph)
        if is_rebuilt:
            library = owner_of(between[-1].co_filename) if between else None
            self.buffers.add(inputs[0][0], out, path[0], library)
        # Last: tensors without memory or strides raise there.
        self.inputs.masked_places.add_forward(func, inputs, path[0], path[min(1, len(path) - 1)])
        self.inputs.add(func, inputs[0], out, path, in_library=bool(between))

    def _count(self, path: Path, between: tuple[CodeType, ...], took_ns: int, ops: int) -> None:
        self._constant[path] += took_ns
        self._counts[path] += ops
        if between:
            self._library_codes[path, between] += took_ns
            self._library_ops[path, between] += ops

    def _uncount(self, tensor: Any) -> None:
        """Something else is written into a tensor: zeros that are filled cannot be kept from step to step."""
        reference, path, between, took_ns = self._kept.pop(id(tensor), (_dead, (), (), 0))
        if reference() is tensor:
            self._count(path, between, -took_ns, -1)

    def _number_of_op(self, func: Any, schema: OpSchema, types: Any, flat: list[Any], written: list[Any]) -> int | None:
        """The number of an op with these inputs, in a flat list, of which it writes into ``written``; None for none."""
        if schema.draws or any(kind not in OWN_KINDS for kind in types):
            return None
        if func is torch.ops.aten.lift_fresh.default:
            # torch.tensor(values): a new tensor each time, made of Python's values. A large one is data.
            (tensor,) = flat
            return hash((sample_of(tensor), tensor.shape, tensor.dtype)) if tensor.numel() <= SAMPLED else None
        outlives = [one for one in written if not self._is_made(one)]
        if not all(map(self._is_written_once, outlives)):
            return None
        parts: list[Any] = [func]
        for value in flat:
            if any(value is one for one in outlives):
                if (sample := sample_of(value)) is None:
                    return None
                value = (id(value), sample)
            elif isinstance(value, torch.Tensor):
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
            return number if version == self._version_of(tensor) else None
        if self._before is None:
            self._known[id(tensor)] = weakref.ref(tensor)
        elif self._known.get(id(tensor), _dead)() is not tensor:
            return None
        sample = sample_of(tensor)
        return hash((id(tensor), self._version_of(tensor), sample)) if sample is not None else None

    def _is_written_once(self, tensor: Any) -> bool:
        """Whether nothing else has written into a tensor from before the step since it was written in the first step.

        That is so in the first step, too.
        """
        version = self._version_of(tensor)
        if self._before is None:
            self._rewritten[id(tensor)] = weakref.ref(tensor), version
            return True
        reference, before = self._rewritten.get(id(tensor), (_dead, 0))
        return reference() is tensor and version == before + 1

    def _is_made(self, tensor: Any) -> bool:
        """Whether an op of this step made the tensor."""
        return self._values.get(id(tensor), (_dead,))[0]() is tensor

    def _remember(self, schema: OpSchema, flat: list[Any], written: list[Any], out: Any, number: int | None) -> None:
        """Note the numbers of what the op returned and of what it wrote into."""
        for at, tensor in enumerate(written):
            base = self._base_of(tensor)
            before = self._number_of(base) if base is not None else None
            # Autograd counts the change after this.
            version = self._version_of(tensor) + 1
            if tensor.is_inference():
                self._writes[self._memory_of(tensor)] += 1
            self._set(tensor, (number, "written", at) if number is not None else None, version)
            if base is not None:
                self._set(base, None if None in (before, number) else (before, number, at), version)
        first = next((one for one in flat if isinstance(one, torch.Tensor)), None)
        for at, tensor in enumerate(flattened(out)):
            if isinstance(tensor, torch.Tensor) and not any(tensor is one for one in written):
                version = self._version_of(first if schema.is_view and first is not None else tensor)
                self._set(tensor, (number, at) if number is not None else None, version)
                if schema.is_view and first is not None and tensor.is_inference():
                    base = self._base_of(first)
                    viewed = weakref.ref(first if base is None else base)
                    self._memory[id(tensor)] = weakref.ref(tensor), self._memory_of(first), viewed

    def _version_of(self, tensor: Any) -> int:
        """How often its memory was written into."""
        return self._writes[self._memory_of(tensor)] if tensor.is_inference() else int(tensor._version)

    def _memory_of(self, tensor: Any) -> int:
        known = self._memory.get(id(tensor))
        if known is None or known[0]() is not tensor:
            known = self._memory[id(tensor)] = weakref.ref(tensor), next(self._next_memory), _dead
        return known[1]

    def _base_of(self, tensor: Any) -> Any:
        """The tensor that this one is a view of; None where it is none, or where that is gone."""
        if tensor._base is not None or not tensor.is_inference():
            return tensor._base
        known = self._memory.get(id(tensor))
        return known[2]() if known is not None and known[0]() is tensor else None

    def _set(self, tensor: Any, parts: tuple[Any, ...] | None, version: int) -> None:
        number = hash(parts) if parts is not None else None
        self._values[id(tensor)] = (weakref.ref(tensor), version, number)

    def rows(self) -> tuple[ConstantOps, ...]:
        """The lines whose ops, or whose calls, compute the same in each step, by their time."""
        found: dict[tuple[Site, CodeType | None], list[Path]] = {}
        for path in (path for path, ops in self._counts.items() if ops):
            if path in self._of_library and path[0] in self._changing_sites:
                continue  # a part of what a library does for this line: see `_rows_of_libraries`
            depth = next((at for at, call in enumerate(calls_on(path)) if call in self._changing_calls), None)
            if depth is not None:
                found.setdefault((path[depth], path[depth - 1][0] if depth else None), []).append(path)
        rows = [self._row(site, called, paths) for (site, called), paths in found.items()]
        rows += self._rows_of_libraries()
        return tuple(sorted(rows, key=lambda row: -row.host_ns))

    def _rows_of_libraries(self) -> Iterator[ConstantOps]:
        """Functions of a library all of whose ops are constant, below a line other ops of which are not.

        The module of a library that prepares its input anew in each call often has an argument to keep that.
        """
        found: dict[CodeType, list[tuple[Path, tuple[CodeType, ...]]]] = {}
        for key in (key for key, ops in self._library_ops.items() if ops):
            path, between = key
            called = next((code for code in between if code not in self._changing), None)
            if any(owner_of(code.co_filename) in _FRAMEWORKS for code in between):
                continue
            if called is not None and path[0] in self._changing_sites:
                found.setdefault(called, []).append(key)
        for called, keys in found.items():
            spent: Counter[Site] = Counter()
            for key in keys:
                spent[key[0][0]] += self._library_codes[key]
            at = location_of(spent.most_common(1)[0][0])
            module = self._library_modules.get(keys[0][1][0])
            yield ConstantOps(
                **msgspec.structs.asdict(at) | {"owner": USER},
                phase=self._phases[keys[0][0]],
                called=Location(
                    file=called.co_filename,
                    line=called.co_firstlineno,
                    function=function_name(called),
                    owner=owner_of(called.co_filename),
                ),
                made_at=made_at(module) if module is not None else None,
                busiest=at,
                ops=sum(self._library_ops[key] for key in keys),
                host_ns=sum(self._library_codes[key] for key in keys),
            )

    def _row(self, site: Site, called: CodeType | None, paths: list[Path]) -> ConstantOps:
        code, line = site
        spent: Counter[Site] = Counter()
        elsewhere = {call[0][0] for call in self._changing_calls}
        for path in paths:
            # Skips lines of functions that another call runs with changing results.
            own = next((one for one in path if one[0] not in elsewhere), path[0])
            spent[own] += self._constant[path]
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


def _is_view(func: Any, arguments: tuple[Any, ...], out: Any) -> bool:
    """Whether the op returned memory of its input: of those that may, some copy, as a reshape of an expanded tensor."""
    if not schema_of(func).is_view:
        return False
    tensors = arguments and is_tensor(arguments[0]) and is_tensor(out)
    return not tensors or out.untyped_storage().data_ptr() == arguments[0].untyped_storage().data_ptr()


def _dead() -> Any:
    """Stands for the reference to a tensor that is not known."""
    return None


def _on_device(out: Any) -> bool:
    return any(one.device.type != "cpu" for one in tensors_in(out))
