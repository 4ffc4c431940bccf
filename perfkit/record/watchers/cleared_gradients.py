"""Gradients that are cleared before their optimizer steps: of a generator that is in the graph of its critic's loss.

While `_MAX_STEPS` steps of optimizers are watched, each compares the gradients of the other optimizers with what they
were at the step before: those that a backward has written since, and that are gone when their own optimizer steps, were
computed in vain. Where several optimizers step after one backward, each still has its gradients.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfkit._callsite import find_callsite
from perfkit._location import Location
from perfkit._raised_signals import errors_dropped
from perfkit.ranges import dynamo
from perfkit.record.input_slices import version_of
from perfkit.record.program_values import is_tensor, unseen, values_in
from perfkit.record.watchers.compilations import compiled_graphs
from perfkit.run.records import UnusedGradients

#: The step before which it begins (as in `unused_gradients`), and the steps of optimizers that are watched: six rounds
#: of a generator and five of its critic.
_FIRST_STEP, _MAX_STEPS = 8, 36
#: Of one model, backwards that were in vain: one can be a step that the program skipped.
_LEAST = 3


class _CalledModel(NamedTuple):
    """A model that was called since the last step of an optimizer, with inputs of which none needs a gradient."""

    model: Callable[[], Any]
    called_at: Location | None


class _Gradient(NamedTuple):
    """The gradient of one parameter, and how often it was written."""

    tensor: Callable[[], Any]
    version: int


class ClearedGradientWatch:
    """Sees which models are called, and optimizers' steps; ``optimizers`` are those that have stepped."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self._hook: Any = None
        self._steps = 0
        #: By the id of the model; None: some of its inputs needed a gradient.
        self._calls: dict[int, _CalledModel | None] = {}
        #: By the id of the optimizer: a gradient as it was at the last step, and models whose gradients were written.
        self._before: dict[int, _Gradient | None] = {}
        self._reached: dict[int, list[_CalledModel]] = {}
        self._in_vain: Counter[int] = Counter()
        self._models: dict[int, UnusedGradients] = {}

    def start_if_due(self, step: int) -> None:
        """Watch from step 8 on, once, where there are several optimizers; a compiled step would be compiled again."""
        if step < _FIRST_STEP or self._steps or self._hook is not None or len(self._optimizers) < 2:
            return
        if not compiled_graphs():
            self._hook = register_optimizer_step_post_hook(self._after_step)

    @unseen
    def add_call(self, module: Any, inputs: tuple[Any, Any]) -> None:
        """A model is called, from outside of all others, with these arguments and keyword arguments."""
        if self._hook is None or not torch.is_grad_enabled() or self._calls.get(id(module), module) is None:
            return
        with errors_dropped():  # the program's own tensors answer
            if any(is_tensor(one) and one.requires_grad for part in inputs for one in values_in(part)):
                self._calls[id(module)] = None
            elif id(module) not in self._calls:
                site = find_callsite(sys._getframe())
                self._calls[id(module)] = _CalledModel(weakref.ref(module), site.at if site is not None else None)

    @unseen
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with errors_dropped():  # the program's own optimizer is asked
            for other in self._optimizers:
                if other is not optimizer:
                    self._look_at(other)
            self._settle(optimizer)
        self._calls.clear()
        self._steps += 1
        if self._steps >= _MAX_STEPS:
            self.stop()

    dynamo.leave_out(_after_step)

    def _look_at(self, optimizer: Any) -> None:
        """A backward may have written gradients of an optimizer that has not stepped."""
        parameters = {id(one) for group in optimizer.param_groups for one in group["params"]}
        before, now = self._before.get(id(optimizer)), _gradient_of(optimizer)
        if now is not None and (before is None or before.tensor() is not now.tensor() or before.version != now.version):
            for call in self._calls.values():
                model = call.model() if call is not None else None
                if call is not None and model is not None and any(id(one) in parameters for one in model.parameters()):
                    self._reached.setdefault(id(optimizer), []).append(call)
        self._before[id(optimizer)] = now

    def _settle(self, optimizer: Any) -> None:
        """An optimizer has stepped: what was written before is in its gradients, or was cleared."""
        before, now = self._before.get(id(optimizer)), _gradient_of(optimizer)
        kept = before is not None and now is not None and before.tensor() is now.tensor()
        for call in self._reached.pop(id(optimizer), ()):
            model = call.model()
            if kept or model is None:
                continue
            self._in_vain[id(model)] += 1
            self._models[id(model)] = UnusedGradients(
                module=type(model).__name__,
                elements=sum(one.numel() for one in model.parameters() if one.requires_grad),
                called_at=call.called_at,
                cleared=True,
            )
        self._before[id(optimizer)] = now

    def found(self) -> tuple[UnusedGradients, ...]:
        """The models whose gradients were computed in vain, several times."""
        return tuple(model for key, model in self._models.items() if self._in_vain[key] >= _LEAST)

    def stop(self) -> None:
        """Watch no longer."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()


def _gradient_of(optimizer: Any) -> _Gradient | None:
    """The gradient of an optimizer's first parameter that has one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return _Gradient(weakref.ref(parameter.grad), version_of(parameter.grad))
    return None
