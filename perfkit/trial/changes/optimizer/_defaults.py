"""Other options for every optimizer that the program makes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from perfkit.trial.site import Site


def with_options(site: Site, options: dict[str, Any]) -> None:
    """Construct optimizers of the classes that have these options with them."""
    # Weak: an optimizer that the program drops is freed.
    changed: weakref.WeakKeyDictionary[Any, _Options] = weakref.WeakKeyDictionary()

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def construct(self: Any, params: Any, defaults: dict[str, Any]) -> None:
            has_them = options.keys() <= defaults.keys() and not defaults.get("differentiable")
            # An option that is None is off where another one is on.
            if has_them and any(bool(defaults[name]) != value for name, value in options.items()):
                changed[self] = _Options(defaults, options)
            original(self, params, defaults)
            if site.active and self in changed:
                site.used()
                changed[self].switch(self, True)

        return construct

    def switch(on: bool) -> None:
        for optimizer, its in list(changed.items()):
            its.switch(optimizer, on)

    site.patches.wrap(Optimizer, "__init__", wrapper)
    site.switch(lambda: switch(True), lambda: switch(False))


class _Options:
    """The options of one optimizer: the program's, and those of the change."""

    # `torch.amp.GradScaler` leaves its scale to an optimizer that has it; the constructors of fused ones set it.
    _TAKES_SCALE = "_step_supports_amp_scaling"

    def __init__(self, program: dict[str, Any], changed: dict[str, Any]) -> None:
        self._program = {name: program[name] for name in changed}
        self._changed = changed

    def switch(self, optimizer: Any, on: bool) -> None:
        """Let the optimizer go on with the change or without it: its state fits both ways."""
        before, after = (self._program, self._changed) if on else (self._changed, self._program)
        for options in (optimizer.defaults, *optimizer.param_groups):
            if _is_set(options, before):
                options.update(after)
        if "fused" in self._changed:
            if on:
                setattr(optimizer, self._TAKES_SCALE, True)
            else:
                vars(optimizer).pop(self._TAKES_SCALE, None)
            _move_steps(optimizer)


def _move_steps(optimizer: Any) -> None:
    """Put the number of steps of each weight where the update reads it: on the weight's device if that is fused."""
    for group in optimizer.param_groups:
        on_device = group.get("fused") or group.get("capturable")
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            if isinstance(step := state.get("step"), torch.Tensor):
                state["step"] = step.to(weight.device if on_device else "cpu")


def _is_set(defaults: dict[str, Any], options: dict[str, Any]) -> bool:
    return all(defaults[name] == value for name, value in options.items())
