"""Models whose backward computes gradients of parameters that no optimizer updates, as those of a teacher.

And parts of models: a backbone that was left out of the optimizer. Where such a part is called, and whether its inputs
need gradients, is seen in its next call, by a hook that removes itself.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from perfkit._callsite import find_callsite
from perfkit._location import Location
from perfkit._raised_signals import errors_dropped
from perfkit.ranges import dynamo
from perfkit.record.input_slices import version_of
from perfkit.record.program_values import is_tensor, unseen, values_in
from perfkit.record.watchers.compilations import compiled_graphs
from perfkit.run.records import UnusedGradients

#: Models that are kept in mind: a program has a few, and a module that is made for each call is none.
_MAX_MODELS = 64
#: Parts of models that are looked at, the largest of each model.
_MAX_PARTS = 4
#: The step before which models are looked at first (chosen: every optimizer of a usual loop has stepped); then at twice
#: as many.
_FIRST_CHECK = 8


class _Called(NamedTuple):
    """A model, or a part of one, at a call with gradients enabled."""

    model: Callable[[], Any]
    called_at: Location | None
    #: Whether an argument needs a gradient: then only those of the parameters may be in vain.
    passes_on: bool
    #: The number of changes of each parameter, by its id: what updates them need not be an optimizer.
    versions: dict[int, int]


class UnusedGradientWatch:
    """Sees which models are called; ``optimizers`` are those that have stepped."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        #: By the id of the model; None: nothing of it needs a gradient.
        self._called: dict[int, _Called | None] = {}
        self._found: dict[int, UnusedGradients] = {}
        self._due = _FIRST_CHECK
        #: By the id of the part whose next call it waits for.
        self._hooks: dict[int, Any] = {}

    @unseen
    def add_call(self, module: Any, inputs: tuple[Any, Any]) -> None:
        """A model is called, from outside of all others, with these arguments and keyword arguments."""
        if id(module) not in self._called and len(self._called) < _MAX_MODELS and torch.is_grad_enabled():
            self._add(module, inputs)

    def _add(self, module: Any, inputs: tuple[Any, ...]) -> None:
        self._called[id(module)] = None
        with errors_dropped():  # the program's own module answers
            if parameters := _trained(module):
                site = find_callsite(sys._getframe())
                passes_on = any(is_tensor(one) and one.requires_grad for part in inputs for one in values_in(part))
                at, versions = site.at if site is not None else None, _versions(parameters)
                self._called[id(module)] = _Called(weakref.ref(module), at, passes_on, versions)

    def check_if_due(self, step: int) -> None:
        """Look at the models that are alive before ``step``: at the end of the run they may be gone."""
        if step >= self._due:
            self._due = 2 * step
            self.found(with_parts=True)

    @unseen
    def found(self, *, with_parts: bool = False) -> tuple[UnusedGradients, ...]:
        """The models with gradients of parameters that no optimizer has and nothing else has changed.

        Args:
            with_parts: Wait for the next call of parts of which that is true, in a model that is trained otherwise.
        """
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        updated = {id(one) for group in groups for one in group["params"]}
        for key, called in list(self._called.items()):
            model = called.model() if called is not None and updated else None
            # Of a model that is gone by now, as after the function that trained it, what was seen before holds.
            if called is None or model is None:
                continue
            self._found.pop(key, None)
            with errors_dropped():  # see `_add`
                parameters = _trained(model)
                if _are_unused(parameters, updated, called.versions):
                    self._found[key] = UnusedGradients(
                        module=type(model).__name__,
                        elements=sum(one.numel() for one in parameters),
                        called_at=called.called_at,
                        passes_on=called.passes_on,
                    )
                elif with_parts and not compiled_graphs():
                    self._look_at_parts(model, updated, called.versions)
        return tuple(self._found.values())

    def _look_at_parts(self, model: Any, updated: set[int], versions: dict[int, int]) -> None:
        """Wait for the next call of each part of a trained model that nothing trains."""
        parts = sorted(_unused_parts(model, updated, versions), key=lambda part: -_elements(part))[:_MAX_PARTS]
        for part in parts:
            if id(part) not in self._called:
                self._called[id(part)] = None
                # Without keyword arguments: torch (2.13) leaves a part of a hook for those in place.
                self._hooks[id(part)] = part.register_forward_pre_hook(self._before_part)

    @unseen
    def _before_part(self, part: Any, args: Any) -> None:
        hook = self._hooks.pop(id(part), None)
        if hook is not None:
            hook.remove()
            if torch.is_grad_enabled():
                self._add(part, args)

    dynamo.leave_out(_before_part)

    def stop(self) -> None:
        """Remove the hooks of parts that were not called again."""
        while self._hooks:
            self._hooks.popitem()[1].remove()


def _trained(module: Any) -> list[Any]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _elements(module: Any) -> int:
    return sum(one.numel() for one in _trained(module))


def _versions(parameters: list[Any]) -> dict[int, int]:
    return {id(one): version_of(one) for one in parameters}


def _are_unused(parameters: list[Any], updated: set[int], versions: dict[int, int]) -> bool:
    """Whether some of these have gradients, no optimizer has any, and all are as they were."""
    return (
        any(one.grad is not None for one in parameters)
        and updated.isdisjoint(map(id, parameters))
        and all(versions.get(id(one)) == version_of(one) for one in parameters)
    )


def _unused_parts(model: Any, updated: set[int], versions: dict[int, int]) -> Iterator[Any]:
    """The largest modules in a model of which nothing is trained."""
    for part in model.children():
        parameters = _trained(part)
        if _are_unused(parameters, updated, versions):
            yield part
        elif parameters:
            yield from _unused_parts(part, updated, versions)
