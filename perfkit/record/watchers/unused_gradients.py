"""Models whose backward computes gradients of parameters that no optimizer updates, as those of a teacher.

And parts of models: a backbone that was left out of the optimizer. Where such a part is called, and whether its inputs
need gradients, is seen in its next call, by a hook that removes itself. That gradients are computed is seen by hooks of
two parameters, which remove themselves too: what a program clears after its step is not there between two steps.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from perfkit._callsite import find_callsite
from perfkit._location import Location
from perfkit._raised_signals import errors_dropped
from perfkit.ranges import dynamo
from perfkit.record.input_slices import version_of
from perfkit.record.program_values import is_tensor, sample_of, unseen, values_in
from perfkit.record.watchers.compilations import compiled_graphs
from perfkit.run.records import UnusedGradients

#: Models that are kept in mind: a program has a few, and a module that is made for each call is none.
_MAX_MODELS = 64
#: Parts of models that are looked at, the largest of each model: the layers of a backbone.
_MAX_PARTS = 16
#: The step before which models are looked at first (chosen: every optimizer of a usual loop has stepped); then at twice
#: as many.
_FIRST_CHECK = 8
#: Parameters that an optimizer has are not updated if nothing changed them for this many steps (chosen: more than
#: gradients are accumulated over), as those of a teacher that was trained first.
_IDLE_STEPS = 32


#: The number of changes of a parameter, and some of its elements, None where these were not looked at.
_State = tuple[int, bytes | None]


class _Called:
    """A model, or a part of one, at a call with gradients enabled."""

    def __init__(self, model: Any, called_at: Location | None, *, passes_on: bool, states: dict[int, _State]) -> None:
        self.model: Callable[[], Any] = weakref.ref(model)
        self.called_at = called_at
        #: Whether an argument needs a gradient: then only those of the parameters may be in vain.
        self.passes_on = passes_on
        #: What each parameter was, by its id: what updates them need not be an optimizer.
        self.states = states
        #: The step of these numbers, whether they are of the first call, and whether a gradient was computed since.
        self.since, self.as_first = 0, True
        self.graded = False
        #: Of a part: the class of the model, and its share of the model's elements that products read.
        self.of: str | None = None
        self.share: float | None = None


class _IdlePart(NamedTuple):
    """A part of a model of which nothing is trained; ``leads``: nothing before it is trained either."""

    module: Any
    leads: bool


class UnusedGradientWatch:
    """Sees which models are called; ``optimizers`` are those that have stepped."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        #: By the id of the model; None: nothing of it needs a gradient.
        self._called: dict[int, _Called | None] = {}
        #: The names of their classes.
        self.models: frozenset[str] = frozenset()
        self._found: dict[int, UnusedGradients] = {}
        #: Ids of models that something has changed: a teacher may be trained first, and called in another line then.
        self._changed: set[int] = set()
        self._due = _FIRST_CHECK
        self._step = 0
        #: By the id of a part: the model's class, its share of the model's elements in products, `_IdlePart.leads`.
        self._parts: dict[int, tuple[str, float, bool]] = {}
        #: By the id of the part whose next call, or the parameter whose next gradient it waits for.
        self._hooks: dict[int, Any] = {}

    @unseen
    def add_call(self, module: Any, inputs: tuple[Any, Any]) -> None:
        """A model is called, from outside of all others, with these arguments and keyword arguments."""
        if id(module) not in self._called and len(self._called) < _MAX_MODELS and torch.is_grad_enabled():
            called = self._add(module, inputs)
            if called is not None and id(module) in self._changed and not compiled_graphs():
                called.as_first = False
                with errors_dropped():  # see `_add`
                    self._await_gradient(called, _trained(module))

    def _add(self, module: Any, inputs: tuple[Any, ...]) -> _Called | None:
        self._called[id(module)] = called = None
        with errors_dropped():  # the program's own module answers
            if parameters := _trained(module):
                site = find_callsite(sys._getframe())
                passes_on = any(is_tensor(one) and one.requires_grad for part in inputs for one in values_in(part))
                at = site.at if site is not None else None
                called = _Called(module, at, passes_on=passes_on, states=_states(parameters))
                called.since = self._step
                self._called[id(module)] = called
                inner = getattr(module, "_orig_mod", module)  # of a compiled model
                self.models |= {type(inner).__name__}
        return called

    def check_if_due(self, step: int) -> None:
        """Look at the models that are alive before ``step``: at the end of the run they may be gone."""
        self._step = step
        if step >= self._due:
            self._due = 2 * step
            self.found()
            self._look_again()

    @unseen
    def found(self) -> tuple[UnusedGradients, ...]:
        """The models with gradients of parameters that nothing has changed; parts of one model are one."""
        updated = self._updated()
        for key, called in list(self._called.items()):
            model = called.model() if called is not None and updated else None
            # Of a model that is gone by now, as after the function that trained it, what was seen before holds.
            if called is None or model is None:
                continue
            self._found.pop(key, None)
            with errors_dropped():  # see `_add`
                parameters = _trained(model)
                if _are_unused(parameters, updated, called, self._step):
                    self._found[key] = UnusedGradients(
                        module=type(model).__name__,
                        elements=sum(one.numel() for one in parameters),
                        called_at=called.called_at,
                        passes_on=called.passes_on,
                        of=called.of,
                        share=called.share,
                    )
        return _joined(self._found.values())

    def _updated(self) -> set[int]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return {id(one) for group in groups for one in group["params"]}

    @unseen
    def _look_again(self) -> None:
        """Wait for gradients of what nothing changes, and for the next call of such parts of a trained model."""
        updated = self._updated()
        for key, called in list(self._called.items()):
            model = called.model() if called is not None and updated else None
            if called is None or model is None or compiled_graphs():
                continue
            with errors_dropped():  # see `_add`
                parameters = _trained(model)
                if not _are_changed(parameters, called):
                    self._await_gradient(called, parameters)
                elif called.of is None:
                    if not updated.isdisjoint(map(id, parameters)):
                        self._look_at_parts(model, updated, called)
                    # Its next call is as its first.
                    self._changed.add(key)
                    del self._called[key]

    def _await_gradient(self, called: _Called, parameters: list[Any]) -> None:
        """Note the next gradient of the first or the last of these parameters."""

        def seen(_: Any) -> None:
            called.graded = True
            for key in awaited:
                if (hook := self._hooks.pop(key, None)) is not None:
                    hook.remove()

        ends = list({id(one): one for one in (*parameters[:1], *parameters[-1:])}.values())
        awaited = [id(one) for one in ends if not called.graded and id(one) not in self._hooks]
        for one in ends:
            if id(one) in awaited:
                self._hooks[id(one)] = one.register_hook(seen)

    def _look_at_parts(self, model: Any, updated: set[int], called: _Called) -> None:
        """Wait for the next call of each part of a trained model that nothing trains."""
        whole = max(1, _in_products(model))
        parts = sorted(_unused_parts(model, updated, called), key=lambda part: -_elements(part.module))[:_MAX_PARTS]
        for part in parts:
            if id(part.module) not in self._called:
                self._called[id(part.module)] = None
                leads = part.leads and not called.passes_on
                self._parts[id(part.module)] = type(model).__name__, _in_products(part.module) / whole, leads
                # Without keyword arguments: torch (2.13) leaves a part of a hook for those in place.
                self._hooks[id(part.module)] = part.module.register_forward_pre_hook(self._before_part)

    @unseen
    def _before_part(self, part: Any, args: Any) -> None:
        # A validation may come first: the next call that builds a graph is waited for.
        hook = self._hooks.pop(id(part), None) if torch.is_grad_enabled() else None
        if hook is not None:
            hook.remove()
            if (called := self._add(part, args)) is not None:
                called.of, called.share, leads = self._parts[id(part)]
                # Where nothing before it is trained, nobody needs the gradients of its inputs either.
                called.passes_on = called.passes_on and not leads
                with errors_dropped():  # see `_add`
                    self._await_gradient(called, _trained(part))

    dynamo.leave_out(_before_part)

    def stop(self) -> None:
        """Remove the hooks of parts that were not called again, and of parameters without a gradient."""
        while self._hooks:
            self._hooks.popitem()[1].remove()


def _trained(module: Any) -> list[Any]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _elements(module: Any) -> int:
    return sum(one.numel() for one in _trained(module))


def _in_products(module: Any) -> int:
    """The elements that products read: those of a table of embeddings take no time that follows their number."""
    tables = (one for one in module.modules() if isinstance(one, torch.nn.Embedding | torch.nn.EmbeddingBag))
    return max(0, _elements(module) - sum(map(_elements, tables)))


def _states(parameters: list[Any]) -> dict[int, _State]:
    """How often each was changed, and some elements of the first and the last: a fused update leaves their number."""
    sampled = {id(one) for one in (*parameters[:1], *parameters[-1:])}
    return {id(one): (version_of(one), sample_of(one) if id(one) in sampled else None) for one in parameters}


def _are_changed(parameters: list[Any], called: _Called) -> bool:
    for key, (changes, sample) in _states(parameters).items():
        before = called.states.get(key)
        if before is None or before[0] != changes or (None not in (before[1], sample) and before[1] != sample):
            return True
    return False


def _are_unused(parameters: list[Any], updated: set[int], called: _Called, step: int) -> bool:
    """Whether some of these have gradients and all are as they were.

    Those that an optimizer has, or that were changed before, for `_IDLE_STEPS`, and where elements could be compared.
    """
    if not parameters or _are_changed(parameters, called):
        return False
    if called.as_first and updated.isdisjoint(map(id, parameters)):
        return called.graded or any(one.grad is not None for one in parameters)
    compared = any(sample is not None for _, sample in called.states.values())
    return compared and called.graded and step - called.since >= _IDLE_STEPS


def _unused_parts(model: Any, updated: set[int], called: _Called) -> Iterator[_IdlePart]:
    """The largest modules in a model of which nothing is trained."""
    leads = True

    def look(module: Any) -> Iterator[_IdlePart]:
        nonlocal leads
        for part in module.children():
            parameters = _trained(part)
            if not parameters:
                continue
            if updated.isdisjoint(map(id, parameters)) and not _are_changed(parameters, called):
                yield _IdlePart(part, leads)
                continue
            yield from look(part)
            if not updated.isdisjoint(map(id, part.parameters(recurse=False))):
                leads = False

    yield from look(model)


def _joined(found: Iterable[UnusedGradients]) -> tuple[UnusedGradients, ...]:
    """Parts of one model that are called in one line become one."""
    groups: dict[Any, list[UnusedGradients]] = {}
    for at, one in enumerate(found):
        groups.setdefault((one.of, one.called_at, one.passes_on) if one.of is not None else at, []).append(one)
    return tuple(
        msgspec.structs.replace(
            max(group, key=lambda one: one.elements),
            elements=sum(one.elements for one in group),
            share=sum(one.share for one in group if one.share is not None) if group[0].of is not None else None,
            parts=len(group),
        )
        for group in groups.values()
    )
