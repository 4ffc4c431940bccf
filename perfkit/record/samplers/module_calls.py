"""Which modules the user's lines called in the traced step, and which of the calls were repeated with the same input.

A call is repeated if this module object got the very same input before in the step: the same memory with the same
contents (tensors count their in-place changes), or without gradients the same numbers in any memory, unless the module
keeps tensors of its own (a state), and the same plain values; labels only add a loss to the answer and are not
compared. It does not count

- if the optimizer changed the module's parameters in between and a backward follows the call: two networks that train
  against each other have to evaluate the same input twice;
- if dropout is active in it and the call builds a graph: the results differ, and some losses depend on that; likewise
  if the first call drew random numbers without it, as one that samples does. It counts where one of the two is a
  library's own, as of the loss that a Trainer computes: that call was made for another purpose;
- if it comes by the very lines of the first call (the line and those that called its function, up to the module around
  them): an optimizer's closure is called until it converges. From the line of the first call but by other lines, it
  counts if the parameters were not updated in between: an optimizer may call its closure from several lines. It also
  counts where a module called that line first and then a function does: ``self.forward(x)`` in a method;
- in the backward, where activation checkpointing recomputes what was not kept.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from perfkit._code_owner import frames_outwards
from perfkit._raised_signals import leave_to_program
from perfkit.record.input_slices import slices_of
from perfkit.record.program_values import is_plain, is_tensor, is_tracing, unseen, values_in
from perfkit.record.samplers.call_paths import (
    Path,
    Site,
    again_at,
    by_library,
    location_of,
    whole_path,
    without_module,
)
from perfkit.record.samplers.dropped_metrics import drops_value
from perfkit.record.samplers.fingerprints import Contents, fingerprint, random_state
from perfkit.record.samplers.gradient_calls import await_backward, leads_elsewhere
from perfkit.record.samplers.input_padding import padding_of_longest
from perfkit.record.samplers.module_state import has_active_dropout, state_of
from perfkit.record.samplers.rollouts import LearnedUses, Moves
from perfkit.record.samplers.sample_loops import items_of_loop
from perfkit.run.records import ModuleCalls, Phase

#: Arguments that transformers' models make a loss of, beside the same answer.
_LOSS_ARGUMENTS = frozenset({"labels", "num_items_in_batch"})

#: Calls that are inspected in the step; more come from a model that is called line by line for minutes.
_MAX_CALLS = 10_000


class _FirstCall(NamedTuple):
    """The first call with some input; ``alive`` are weak references to the owners of its memory.

    ``whole`` are all lines that lead to it, ``path`` those up to the module around it; ``by_library`` is whether no
    line of the user's calls the module itself.
    """

    path: Path
    whole: Path
    by_library: bool
    version: int
    alive: tuple[Any, ...]

    @property
    def is_alive(self) -> bool:
        """Whether no other tensor may have taken the memory of its input."""
        return all(reference() is not None for reference in self.alive)


class ModuleCall:
    """One call that has started."""

    __slots__ = (
        "again_at",
        "builds_graph",
        "items",
        "keys",
        "module",
        "moves",
        "padded",
        "parts",
        "passes_on",
        "path",
        "phase",
        "positions",
        "random_state",
        "repeated",
        "same",
        "samples",
        "started_ns",
        "state",
        "updated",
    )

    def __init__(self, path: Path, module: Any, phase: Phase) -> None:
        self.path = path
        self.module = module
        self.phase = phase
        #: The module and its input, in one form or two, if no call had it before.
        self.keys: tuple[Any, ...] = ()
        self.random_state = random_state()
        #: The items of a loop that sends one sample after the other, and what the module kept before the call.
        self.items: int | None = None
        self.state: tuple[Any, ...] = ()
        #: A repeated call from the line of the first: the line that led to it and not to the first.
        self.again_at: Site | None = None
        #: What it may be the first one of.
        self.moves: Moves | None = None
        #: Whether its input was seen before, and whether the module's parameters were updated since.
        self.repeated = self.updated = False
        #: Its input, where the same lines gave it that before, without gradients: dropout makes another answer of it.
        self.same: tuple[Any, ...] | None = None
        #: The samples in its first tensor of at least two dimensions; None: it has none.
        self.samples: int | None = None
        #: Whether a backward may follow it.
        self.builds_graph = torch.is_grad_enabled()
        #: Whether one of its inputs needs a gradient.
        self.passes_on = False
        #: The share of its input that is padding in all rows; None where the input has no rows of whole numbers.
        self.padded: float | None = None
        #: The samples and the positions of each in its first tensor of at least two dimensions; None: it has none.
        self.positions: tuple[int, int] | None = None
        #: The shapes of its tensors and the memory that they are parts of; None where they are no slices.
        self.parts: tuple[Any, ...] | None = None
        self.started_ns = 0


class _SiteSums:
    """The calls of one module from one line in one phase."""

    def __init__(self, call: ModuleCall, passed: tuple[int, int]) -> None:
        self.kind, self.parts, self.passed = type(call.module), call.parts, passed
        self.builds_graph = call.builds_graph
        #: After the first call: the gradients that were asked for alone, and what the module kept.
        self.grads, self.state = 0, call.state
        self.again_at: Site | None = None
        self.items = call.items
        self.moves = call.moves
        self.passes_on = self.draws = False
        #: Whether a backward reached what the first call returned: empty, one True after it; None: that had no graph.
        self.reached: list[bool] | None = None
        self.calls = self.host_ns = 0
        #: Input -> how many calls had it again, and their time; the samples of each call, None where they differ.
        self.same: Counter[tuple[Any, ...]] = Counter()
        self.same_ns = 0
        self.samples = call.samples
        #: Per call with an input of rows: its time, and the share of it that is padding in all rows.
        self.padded: list[tuple[int, float]] = []
        self.sliced = call.parts is not None
        #: The calls that have one position more than the call before, and what the others of their positions took.
        self.growing = self.growing_ns = 0
        self.positions: tuple[int, int] | None = None
        #: Per repeated call: its time, whether the module was updated before it, and how many backwards there were
        #: before it, None where none can follow.
        self.repeated: list[tuple[int, bool, int | None]] = []


class ModuleCallLog:
    """The calls of modules that `LineTracer` sees in one step; keeps no tensor alive. ``now_ns`` is its clock."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._first_calls: dict[tuple[Any, ...], _FirstCall] = {}
        #: Inputs whose first call drew random numbers.
        self._drew: set[tuple[Any, ...]] = set()
        self._contents = Contents()
        self._states: dict[int, bool] = {}
        self._sums: dict[tuple[Site, int, Phase], _SiteSums] = {}
        #: Calls so far, also those that are not inspected any more.
        self.entered = 0
        #: Backwards that have started, those of them by `torch.autograd.grad`, and batches that were fetched so far.
        self.backwards = self.grads = self.fetches = 0
        #: Inspected calls that have not returned: those around the next one.
        self._around = 0
        #: The graph of the first backward after calls that may be a rollout.
        self._learned = LearnedUses()
        #: The phase of the first call from each line.
        self.phases: dict[Site, Phase] = {}
        #: Whether any module was called yet.
        self.started = False

    @unseen
    def enter(self, frame: FrameType, path: Path, phase: Phase) -> ModuleCall | None:
        """A module is called in ``frame`` by the user's lines ``path``; None where the call does not count."""
        self.entered += 1
        if phase == "backward" or self.entered > _MAX_CALLS or is_tracing():
            return None
        arguments = frame.f_locals
        self.phases.setdefault(path[0], phase)
        call = ModuleCall(path, arguments.get("self"), phase)
        named = {name: value for name, value in arguments.get("kwargs", {}).items() if name not in _LOSS_ARGUMENTS}
        values = list(values_in((arguments.get("args", ()), named)))
        try:
            self._inspect(frame, call, values)
        except Exception as error:  # noqa: BLE001 - a tensor without memory or versions (fake, sparse, of inference mode)
            leave_to_program(error)
            call.repeated = False
        try:
            self._find_loop(frame, call, values)
        except Exception as error:  # noqa: BLE001 - source of any form, modules with attributes of any kind
            leave_to_program(error)
            call.items = call.moves = None
        self._around += 1
        call.started_ns = self._now_ns()
        return call

    def _find_loop(self, frame: FrameType, call: ModuleCall, values: list[Any]) -> None:
        """Look at the loop around the first call of a module from a line, and whether others are like the first."""
        passed = (self.backwards, self.fetches)
        sums = self._sums.get((call.path[0], id(call.module), call.phase))
        if sums is not None:
            if sums.moves is not None and not sums.moves.go_on(values, passed):
                sums.moves = None
            if sums.items is not None and not _is_one_sample(values):
                sums.items = None
            return
        caller = next(one for one in frames_outwards(frame.f_back) if one.f_code is call.path[0][0])
        if not self._around:
            call.moves = Moves.begun_by(call.module, values, caller, passed)
        if _is_one_sample(values):
            call.items = items_of_loop(caller, call.module)
        if call.items is not None:
            call.state = state_of(call.module)

    def _inspect(self, frame: FrameType, call: ModuleCall, values: list[Any]) -> None:
        tensors = [value for value in values if is_tensor(value)]
        if not tensors:
            return
        call.passes_on = any(one.requires_grad for one in tensors)
        rows = [(one.shape[0], one.shape[1]) for one in tensors if is_plain(one) and one.dim() > 1]
        # With a cache there is one new position, and a mask that grows.
        call.samples = rows[0][0] if rows else None
        call.positions = rows[0] if rows and all(positions > 1 for _, positions in rows) else None
        call.parts = slices_of(tensors)
        call.padded = padding_of_longest(tensors)
        module = call.module
        random = has_active_dropout(module)
        keys = [(id(module), module.training, *map(fingerprint, values))]
        # No backward tells a call from another one with equal numbers.
        if not (call.builds_graph or self._has_state(module)) and (contents := self._contents.of(values)) is not None:
            keys.append((id(module), module.training, *contents))
        version = sum(parameter._version for parameter in module.parameters())
        first = next((one for key in keys if (one := self._first_calls.get(key)) is not None and one.is_alive), None)
        if first is not None:
            call.updated = first.version != version
            if call.path[0] == first.path[0]:
                alone = without_module(first.path, call.path)
                call.again_at = again_at(first.whole, whole_path(frame)) if alone else again_at(first.path, call.path)
                elsewhere = call.again_at is not None and (alone or not call.updated)
            else:
                elsewhere = True
            drew = not (random or self._drew.isdisjoint(keys))
            differs = drew or (random and call.builds_graph and first.by_library == by_library(frame))
            call.repeated = elsewhere and not differs
            if not (call.repeated or call.builds_graph or call.updated or drew):
                call.same = keys[-1]
            return
        # Freed memory may hold another tensor by now.
        alive = tuple(weakref.ref(one if one._base is None else one._base) for one in tensors)
        first = _FirstCall(call.path, whole_path(frame), by_library(frame), version, alive)
        in_any_memory = first._replace(alive=(weakref.ref(module),))
        self._first_calls |= {keys[0]: first, **dict.fromkeys(keys[1:], in_any_memory)}
        self._drew.difference_update(keys)
        call.keys = tuple(keys)

    def _has_state(self, module: Any) -> bool:
        """Whether a module, or one in it, keeps tensors besides its parameters and buffers."""
        key = id(module)
        if key not in self._states:
            kept = (value for one in module.modules() for value in vars(one).values())
            pairs = (value[:2] if type(value) in (tuple, list) else (value,) for value in kept)
            self._states[key] = any(is_tensor(part) for pair in pairs for part in pair)
        return self._states[key]

    @unseen
    def leave(self, call: ModuleCall, answer: Any = None) -> None:
        """The call has ended."""
        took_ns = self._now_ns() - call.started_ns
        self._around -= 1
        drew = call.random_state is None or call.random_state != random_state()
        if drew:
            self._drew.update(call.keys)
        passed = (self.backwards, self.fetches)
        sums = self._sums.setdefault((call.path[0], id(call.module), call.phase), _SiteSums(call, passed))
        sums.calls += 1
        sums.host_ns += took_ns
        sums.draws |= drew
        sums.passes_on |= call.passes_on
        if sums.calls == 1 and (reached := await_backward(answer)) is not None:
            sums.reached = reached
            sums.passes_on = sums.passes_on or leads_elsewhere(answer, call.module)
        if (sums.items is not None or sums.sliced) and self._depends(sums, call):
            sums.items, sums.sliced = None, False
        sums.sliced &= call.parts == sums.parts
        if call.moves is not None and call.moves.changed(call.module):
            sums.moves = None
        if call.same is not None:
            sums.same[call.same] += 1
            sums.same_ns += took_ns
        if call.samples != sums.samples:
            sums.samples = None
        if call.padded is not None:
            sums.padded.append((took_ns, call.padded))
        if call.positions is not None and sums.positions is not None:
            samples, positions = sums.positions
            if call.positions == (samples, positions + 1):
                sums.growing += 1
                sums.growing_ns += took_ns * positions // (positions + 1)
        sums.positions = call.positions
        if call.repeated:
            sums.again_at = sums.again_at or call.again_at
            sums.repeated.append((took_ns, call.updated, self.backwards if call.builds_graph else None))

    def differentiate(self, frame: FrameType, *, is_grad: bool) -> None:
        """A backward begins, or ``torch.autograd.grad``, in this frame."""
        self.backwards += 1
        self.grads += is_grad
        if any(sums.moves is not None for sums in self._sums.values()):
            self._learned.look(() if is_grad else frame.f_locals.get("tensors"))

    def _depends(self, sums: _SiteSums, call: ModuleCall) -> bool:
        """Whether a call keeps something for the next one, or something between two calls may do so."""
        if sums.calls == 1:
            sums.grads, sums.state = self.grads, state_of(call.module)
            return bool(call.state) and sums.state != call.state
        grads = self.grads - sums.grads
        if (self.backwards - grads, self.fetches) != sums.passed:
            return True
        # A gradient that is asked for alone accumulates nowhere, unless the program updates its weights by it.
        return grads > 0 and state_of(call.module) != sums.state

    @property
    def sites(self) -> list[Site]:
        """The lines that called modules."""
        return list(dict.fromkeys(site for site, _, _ in self._sums))

    def rows(self, traced: Sequence[tuple[Site, Phase]]) -> dict[tuple[Site, Phase], tuple[ModuleCalls, ...]]:
        """The modules that each of these lines called; a phase that began within a line is that of its first run."""
        first, known = dict(reversed(traced)), set(traced)
        rows: dict[tuple[Site, Phase], tuple[ModuleCalls, ...]] = {}
        numbers: dict[int, int] = {}
        for (site, module, phase), sums in self._sums.items():
            code, line = site
            # After an update of the parameters, only a result that no backward uses was not needed.
            calls = [
                (took, updated, passed is not None and passed < self.backwards)
                for took, updated, passed in sums.repeated
            ]
            again = [(took, trained) for took, updated, trained in calls if not (updated and trained)]
            row = ModuleCalls(
                module=sums.kind.__name__,
                calls=sums.calls,
                host_ns=sums.host_ns,
                again=len(again),
                again_ns=sum(took for took, _ in again),
                again_backward=any(trained for _, trained in again),
                again_at=location_of(sums.again_at) if again and sums.again_at is not None else None,
                same=sums.same.total(),
                same_most=max(sums.same.values(), default=0),
                same_ns=sums.same_ns,
                samples=sums.samples,
                sliced=sums.sliced,
                items=sums.items,
                growing=sums.growing,
                growing_ns=sums.growing_ns,
                padded_ns=round(sum(took * share for took, share in sums.padded)) if sums.padded else None,
                builds_graph=sums.builds_graph,
                rolls_out=self._learned.learns_from(sums.moves),
                drops_value=drops_value(sums.kind, code.co_filename, line),
                number=numbers.setdefault(module, len(numbers)),
                draws=sums.draws,
                passes_on=sums.passes_on,
                reached=bool(sums.reached) if sums.reached is not None else None,
            )
            at = (site, phase if (site, phase) in known else first.get(site, phase))
            rows[at] = (*rows.get(at, ()), row)
        return rows


def _is_one_sample(values: list[Any]) -> bool:
    """Whether a batch could hold more such inputs: rows of one, of vectors, or of sequences of them.

    Images may differ in two sizes, and what another object holds is not known: a cache holds what came before.
    """
    tensors = [value for value in values if is_tensor(value)]
    others = (value for value in values if not is_tensor(value))
    return (
        any(one.dim() for one in tensors)
        and all(len(one) == 1 if one.dim() > 1 else one.is_floating_point() or not one.dim() for one in tensors)
        and all(one.dim() <= 3 for one in tensors)
        and all(value is None or issubclass(type(value), bool | int | float | str) for value in others)
    )
