"""Models whose backward computes gradients of parameters that no optimizer updates, as those of a teacher."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from perfkit._callsite import find_callsite
from perfkit._location import Location
from perfkit._raised_signals import errors_dropped
from perfkit.record.input_slices import version_of
from perfkit.record.program_values import is_tensor, unseen, values_in
from perfkit.run.records import UnusedGradients

#: Models that are kept in mind: a program has a few, and a module that is made for each call is none.
_MAX_MODELS = 64
#: The step before which models are looked at first (chosen: every optimizer of a usual loop has stepped); then at twice
#: as many.
_FIRST_CHECK = 8


class _Called(NamedTuple):
    """A model at its first call with gradients enabled."""

    model: Callable[[], Any]
    called_at: Location | None
    #: Whether an argument needs a gradient: then only those of the parameters may be in vain.
    passes_on: bool
    #: The number of changes of each parameter: what updates them need not be an optimizer.
    versions: tuple[int, ...]


class UnusedGradientWatch:
    """Sees which models are called; ``optimizers`` are those that have stepped."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        #: By the id of the model; None: nothing of it needs a gradient.
        self._called: dict[int, _Called | None] = {}
        self._found: dict[int, UnusedGradients] = {}
        self._due = _FIRST_CHECK

    @unseen
    def add_call(self, module: Any, inputs: tuple[Any, Any]) -> None:
        """A model is called, from outside of all others, with these arguments and keyword arguments."""
        if id(module) in self._called or len(self._called) >= _MAX_MODELS or not torch.is_grad_enabled():
            return
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
            self.found()

    @unseen
    def found(self) -> tuple[UnusedGradients, ...]:
        """The models with gradients of parameters that no optimizer has and nothing else has changed."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        updated = {id(one) for group in groups for one in group["params"]}
        for key, called in self._called.items():
            model = called.model() if called is not None and updated else None
            # Of a model that is gone by now, as after the function that trained it, what was seen before holds.
            if called is None or model is None:
                continue
            self._found.pop(key, None)
            with errors_dropped():  # see `add_call`
                parameters = _trained(model)
                has_gradients = any(one.grad is not None for one in parameters)
                if (
                    has_gradients
                    and updated.isdisjoint(map(id, parameters))
                    and called.versions == _versions(parameters)
                ):
                    self._found[key] = UnusedGradients(
                        module=type(model).__name__,
                        elements=sum(one.numel() for one in parameters),
                        called_at=called.called_at,
                        passes_on=called.passes_on,
                    )
        return tuple(self._found.values())


def _trained(module: Any) -> list[Any]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _versions(parameters: list[Any]) -> tuple[int, ...]:
    return tuple(map(version_of, parameters))
