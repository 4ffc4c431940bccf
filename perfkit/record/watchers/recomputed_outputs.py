"""Calls of frozen modules with inputs that they had in an earlier step: features that could be computed once and kept.

Frozen is what needs no gradient, what is called without gradients, and a module none of whose parameters an optimizer
has. None of them may have changed since the first call.

Within one step, and for the same ops in every step, the extra steps see this. Samples that come again with each epoch,
or a text that each request repeats, are seen here, by what is in them: a loader makes new tensors of the same sample.
Some elements of each row are looked at, on a CPU.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from perfkit._callsite import find_callsite
from perfkit._code_owner import USER, frames_outwards, owner_of
from perfkit._location import Location
from perfkit.ranges import dynamo
from perfkit.record.input_slices import version_of
from perfkit.record.program_values import is_plain, is_tensor, sample_of, unseen, values_in, without_modes
from perfkit.record.samplers.module_state import has_active_dropout, normalizes_batch
from perfkit.record.watchers.compilations import compiled_graphs
from perfkit.run.records import RecomputedOutputs

#: Elements of a row by which it is known. Pictures of digits differ in few of theirs; texts, and boards of a game, may
#: differ in one: short rows are looked at whole, and as much of longer ones of whole numbers (0.2 ms for 32 rows).
_COLUMNS, _WHOLE = 32, 1024
#: Rows that are kept in mind per module, about 90 bytes each: all of a small data set, or the first of an epoch.
_MAX_ROWS = 20_000
#: Modules that are looked at, and frozen parts of one model, the largest: a program has one or two.
_MAX_MODULES, _MAX_PARTS = 16, 2
#: The share of a model's elements that a frozen part has at least: a smaller one takes little of the step (chosen).
_PART = 0.1
#: Time for looking: so much at first, and this share of the time since. One call of 64 rows takes 30 µs, on a busy
#: machine 0.1 to 0.2 ms.
_FIRST_NS, _SHARE = 10_000_000, 0.002
#: The least rows that say something: a few may be a test of the program.
_FEW = 16
#: What an argument may be besides a tensor: a cache of keys, a state or a generator makes another answer of equal rows.
_SIMPLE = (type(None), bool, int, float, str)


class _Frozen:
    """A module that nothing has changed since its first call, with the rows of its inputs so far."""

    def __init__(self, module: Any, of: str | None) -> None:
        self.reference: Callable[[], Any] = weakref.ref(module)
        self.name, self.of = type(module).__name__, of
        self.state = _state_of(module)
        self.in_order = _reads_in_order(module)
        #: `_is_random` by ``training``: it goes through all modules.
        self.random: dict[bool, bool] = {}
        #: The rows of earlier steps, and of the running one.
        self.known: set[int] = set()
        self.running: set[int] = set()
        self.step = -1
        self.looks = 0
        #: By the line that calls it: the rows of its inputs, and those that came again.
        self.lines: dict[Location, _AtLine] = {}

    @property
    def rows(self) -> int:
        """The rows of all lines."""
        return sum(one.rows for one in tuple(self.lines.values()))


class _AtLine:
    """The inputs from one line; ``called_from`` is where its function was called when one came again first."""

    def __init__(self) -> None:
        self.rows = self.again = 0
        self.called_from: Location | None = None


class RecomputedOutputWatch:
    """Told of each call of a module from outside of others; ``step`` returns the number of the running step.

    ``optimizers`` are those that have stepped.
    """

    def __init__(self, optimizers: Sequence[Any], step: Callable[[], int]) -> None:
        self._optimizers = optimizers
        self._step = step
        self._began_ns, self._spent_ns = time.perf_counter_ns(), 0
        #: By the id of a module, and whether gradients are enabled: what is known of it, or of its frozen parts; ()
        #: where it is not looked at.
        self._modules: dict[tuple[int, bool], tuple[_Frozen, ...]] = {}
        #: By the id of a part: the hook that waits for its next call.
        self._hooks: dict[int, Any] = {}
        #: Keys of ``_modules`` that are () because no optimizer had stepped yet.
        self._early: set[tuple[int, bool]] = set()

    @unseen
    def add_call(self, module: Any, inputs: tuple[Any, Any]) -> None:
        """A module is called, from outside of all others, with these arguments and keyword arguments."""
        key = id(module), torch.is_grad_enabled()
        frozen = self._modules.get(key)
        if frozen == () and key in self._early and self._optimizers:
            self._early.discard(key)
            del self._modules[key]
            frozen = None
        if frozen == ():
            return
        began_ns = time.perf_counter_ns()
        if self._spent_ns > _FIRST_NS + _SHARE * (began_ns - self._began_ns):
            return
        if frozen is None:
            frozen = self._modules[key] = self._find(module)
            if not (frozen or self._optimizers):
                self._early.add(key)
        for one in frozen:
            if one.of is None:
                self._look(one, module, inputs)
            else:
                self._wait_for(one)
        self._spent_ns += time.perf_counter_ns() - began_ns

    def _find(self, module: Any) -> tuple[_Frozen, ...]:
        found: tuple[_Frozen, ...] = ()
        if len(self._modules) < _MAX_MODULES and not compiled_graphs():
            if not torch.is_grad_enabled() or _is_frozen(module):
                found = (_Frozen(module, None),) if next(module.parameters(), None) is not None else ()
            else:
                parts = sorted(_frozen_parts(module), key=_elements, reverse=True)[:_MAX_PARTS]
                least = _PART * _elements(module)
                found = tuple(_Frozen(part, type(module).__name__) for part in parts if _elements(part) >= least)
                if not found and self._optimizers and not self._is_trained(module) and _has_leaves_only(module):
                    found = (_Frozen(module, None),)
        return found

    def _wait_for(self, frozen: _Frozen) -> None:
        part = frozen.reference()
        if part is None or id(part) in self._hooks:
            return

        @unseen
        def before(part: Any, args: Any) -> None:
            hook = self._hooks.pop(id(part), None)
            if hook is not None:
                hook.remove()
                began_ns = time.perf_counter_ns()
                self._look(frozen, part, (args, {}))
                self._spent_ns += time.perf_counter_ns() - began_ns

        dynamo.leave_out(before)
        # Without keyword arguments: torch (2.13) leaves a part of a hook for those in place.
        self._hooks[id(part)] = part.register_forward_pre_hook(before)

    def _look(self, frozen: _Frozen, called: Any, inputs: tuple[Any, Any]) -> None:
        module = frozen.reference()
        if module is None or module is not called:
            return  # another one has the id of one that is gone
        frozen.looks += 1
        # The 1st, 2nd, 4th, 8th ... look: it goes through all parameters. `rows` asks again.
        if not frozen.looks & (frozen.looks - 1) and self._is_changed(frozen, module):
            self._forget(frozen)
            return
        if module.training not in frozen.random:
            frozen.random[module.training] = _is_random(module)
        if frozen.random[module.training]:
            return
        rows = _rows_of(list(values_in(list(inputs))), in_order=frozen.in_order)
        if rows is None:
            return
        if (step := self._step()) != frozen.step:
            if len(frozen.known) < _MAX_ROWS:
                frozen.known |= frozen.running
            frozen.running, frozen.step = set(), step
        site = find_callsite(frame := sys._getframe())
        if site is None:
            return
        at = frozen.lines.setdefault(site.at, _AtLine())
        again = sum(row in frozen.known for row in rows)
        if len(frozen.running) < _MAX_ROWS:
            frozen.running.update(rows)  # of a program without steps these are all of its rows
        if again and not at.again:
            at.called_from = _caller_of(frame, site.at)
        at.rows += len(rows)
        at.again += again

    def _is_changed(self, frozen: _Frozen, module: Any) -> bool:
        return self._is_trained(module) or _state_of(module) != frozen.state

    def _is_trained(self, module: Any) -> bool:
        """Whether an optimizer has one of its parameters."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return not {id(one) for group in groups for one in group["params"]}.isdisjoint(map(id, module.parameters()))

    def _forget(self, frozen: _Frozen) -> None:
        for key, known in tuple(self._modules.items()):
            if frozen in known:
                self._modules[key] = tuple(one for one in known if one is not frozen)

    @unseen
    def rows(self) -> tuple[RecomputedOutputs, ...]:
        """The calls of frozen modules with inputs that came again, those with most of them first."""
        # Another thread than the one that trains may ask: what changes meanwhile is looked at the next time.
        for one in {one for known in tuple(self._modules.values()) for one in known if one.rows}:
            module = one.reference()
            with suppress(RuntimeError):
                if module is not None and self._is_changed(one, module):
                    self._forget(one)
        found = [
            RecomputedOutputs(
                file=at.file,
                line=at.line or 0,
                function=at.function or "",
                owner=at.owner or "user",
                module=one.name,
                of=one.of,
                inputs=line.rows,
                again=line.again,
                called_from=line.called_from,
            )
            for known in tuple(self._modules.values())
            for one in known
            if one.rows >= _FEW
            for at, line in tuple(one.lines.items())
            if line.again
        ]
        return tuple(sorted(found, key=lambda row: -row.again))

    def stop(self) -> None:
        """Remove the hooks of parts that were not called again."""
        while self._hooks:
            self._hooks.popitem()[1].remove()


def _caller_of(frame: Any, at: Location) -> Location | None:
    """The next line of the user's in another function than ``at``, outwards from ``frame``."""
    for outer in frames_outwards(frame):
        if owner_of(outer.f_code.co_filename) == USER:
            site = find_callsite(outer)
            if site is not None and (site.file, site.function) != (at.file, at.function):
                return site.at
    return None


def _is_frozen(module: Any) -> bool:
    return not any(parameter.requires_grad for parameter in module.parameters())


def _has_leaves_only(module: Any) -> bool:
    """Whether no parameter is computed from others, as those that `torch.func.functional_call` sets for a call."""
    return all(parameter.is_leaf for parameter in module.parameters())


def _elements(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _frozen_parts(module: Any) -> Iterator[Any]:
    """The largest modules in a model that have parameters, none of which is to be trained."""
    for part in module.children():
        if not _is_frozen(part):
            yield from _frozen_parts(part)
        elif next(part.parameters(), None) is not None:
            yield part


def _state_of(module: Any) -> tuple[Any, ...]:
    """Equal as long as nothing changed the parameters: a fused update leaves their number of changes as it was."""
    parameters = list(module.parameters())
    ends = [sample_of(one) for one in (*parameters[:1], *parameters[-1:])]
    return (sum(map(version_of, parameters)), *ends)


def _is_random(module: Any) -> bool:
    """Whether equal inputs have different answers: with dropout, or normalized by the batch that they are in."""
    return normalizes_batch(module) or has_active_dropout(module)


def _reads_in_order(module: Any) -> bool:
    """Whether what it answers to a row may depend on the rows before: it reads a sequence."""
    order = (torch.nn.RNNBase, torch.nn.RNNCellBase, torch.nn.MultiheadAttention)
    return any(isinstance(one, order) or "Attention" in type(one).__name__ for one in module.modules())


def _rows_of(values: list[Any], *, in_order: bool) -> list[int] | None:
    """A number for each row of a batch, equal for equal rows, or one for the whole input; None where not known."""
    tensors = [value for value in values if is_tensor(value)]
    others = [value for value in values if not is_tensor(value)]
    if not tensors or any(type(value) not in _SIMPLE for value in others):
        return None
    if any(not is_plain(one) or one.device.type != "cpu" or one.requires_grad or not one.numel() for one in tensors):
        return None
    samples = tensors[0].shape[0] if tensors[0].dim() else 0
    if any(in_order and _may_be_steps(one) for one in tensors):
        return None
    apart = all(one.dim() > 1 and one.shape[0] == samples for one in tensors)
    # Rows may be nodes of a graph, or words: only where they are surely samples is each looked at alone.
    if apart and not (in_order and any(one.dim() == 2 and one.dtype.is_floating_point for one in tensors)):
        apart = not any(one.dim() == 3 and one.shape[1] == 1 and one.shape[0] > 1 for one in tensors)
    else:
        apart = False
    with without_modes():
        parts = [_bytes_of(one if apart else one.reshape(1, -1)) for one in tensors]
    salt = (tuple(map(repr, others)), tuple(one.shape[1:] if apart else one.shape for one in tensors))
    return [hash((salt, row)) for row in zip(*parts, strict=True) if not _is_plain_row(row)]


def _may_be_steps(tensor: Any) -> bool:
    """Whether each row is one word, or one state, of a sequence whose rest the module keeps."""
    return bool(tensor.dim() == 2 and tensor.shape[1] == 1)


def _bytes_of(tensor: Any) -> list[bytes]:
    """Some elements of each row."""
    rows = tensor.detach().reshape(tensor.shape[0], -1)
    is_number = not (rows.is_floating_point() or rows.is_complex())
    most = _WHOLE if is_number or rows.shape[1] <= _WHOLE else _COLUMNS
    if (step := rows.shape[1] // most) > 1:
        rows = rows[:, ::step]
    # A copy: see `perfkit.record.program_values.sample_of`.
    data = bytes(rows.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy())
    width = len(data) // rows.shape[0]
    return [data[at : at + width] for at in range(0, len(data), width)]


def _is_plain_row(row: tuple[bytes, ...]) -> bool:
    """Whether all of it that was looked at is one byte again and again: a blank picture is equal to others."""
    return all(part.count(part[:1]) == len(part) for part in row)
