"""Finds the models that a program trains, by its optimizers, and puts ranges around their modules in windows."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from perfkit.ranges import module_ranges
from perfkit.ranges.module_ranges import ModuleRanges
from perfkit.record.live_objects import instances_of, subclasses_of
from perfkit.record.watchers.compilations import compiled_graphs

#: Maximum number of modules with a range in a window: what fits a screen. At a microsecond each while torch's profiler
#: records, they also cost less than one op of a step.
_MAX_MODULES = 64

#: The category of these ranges.
CATEGORY = "module"


def trained_modules(optimizers: list[Any]) -> list[Any]:
    """Every module that contains a parameter of these optimizers, itself or in a submodule."""
    trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return [
        found
        for found in instances_of(subclasses_of(torch.nn.Module))
        if any(id(p) in trained for p in found.parameters())
    ]


def roots(found: list[Any]) -> list[Any]:
    """The modules that are part of none of the others."""
    inner = {id(child) for module in found for child in module.modules() if child is not module}
    return [module for module in found if id(module) not in inner]


def top_levels(root: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of a model's children; of a list, a sequence or an only child (as in DDP) also theirs."""
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
    todo = [("", root)]
    while todo:
        name, module = todo.pop(0)
        children = list(module.named_children())
        for child_name, child in children:
            path = f"{name}.{child_name}" if name else child_name
            if module_ranges.is_compiled(child):
                yield path, child._orig_mod
            else:
                yield path, child
                # One list deep: the parts of a list of sequences are layers by themselves.
                opens = isinstance(child, lists) and (module is root or not isinstance(module, lists))
                if (opens or len(children) == 1) and not _compiled_in_place(child):
                    todo.append((path, child))


class ModelRanges:
    """Ranges around the top levels of the trained models while a window is open, for a time per module."""

    def __init__(self, optimizers: list[Any], note: Callable[[str], None]) -> None:
        self._optimizers = optimizers
        self._note = note
        self._ranges: ModuleRanges | None = None
        #: What was chosen last, and for which state: looking through all objects takes some 50 ms.
        self._chosen: list[tuple[str, weakref.ref[Any]]] = []
        self._chosen_for: object = None

    @property
    def state(self) -> object:
        """Equal as long as the same parameters are trained and nothing more was compiled."""
        groups = tuple(
            (id(optimizer), tuple(len(group["params"]) for group in optimizer.param_groups))
            for optimizer in self._optimizers
        )
        return groups, compiled_graphs()

    def update(self, window_open: bool) -> None:
        """Add or remove the ranges; called between two steps."""
        if not window_open:
            self.remove()
        # In a window that opens before any optimizer has stepped, they are added at the next step.
        elif self._ranges is None and self._optimizers:
            self._ranges = ModuleRanges(self._known(), CATEGORY, None)

    def remove(self) -> None:
        """Restore every module."""
        ranges, self._ranges = self._ranges, None
        if ranges is not None:
            ranges.remove()

    def _known(self) -> list[tuple[str, Any]]:
        state = self.state
        known = [(name, module()) for name, module in self._chosen]
        # Meanwhile the program may have dropped a module, put its own range around it, or compiled it.
        changed = any(
            module is None or module_ranges.annotated(module) or _compiled_in_place(module) for _, module in known
        )
        if changed or state != self._chosen_for:
            known = self._choose()
            # Weakly: a model that the program drops must be freed.
            self._chosen = [(name, weakref.ref(module)) for name, module in known]
            self._chosen_for = state
        return known

    def _choose(self) -> list[tuple[str, Any]]:
        chosen: list[tuple[str, Any]] = []
        found = roots(trained_modules(self._optimizers))
        for root in found:
            name = type(getattr(root, "_orig_mod", root)).__name__
            if module_ranges.is_compiled(root) or _compiled_in_place(root):
                self._note(f"modules of {name} have no times of their own: torch.compile has compiled it as a whole")
                continue
            if compiled_graphs():
                # A compiled caller guards what `Module.__call__` reads, and a range is put there.
                self._note(
                    f"modules of {name} have no times of their own: a function that torch.compile made may call it"
                )
                continue
            callable_ = {id(module) for _, module in module_ranges.callable_modules(root)}
            chosen += [
                # Two models in one training (a generator, a discriminator) may have modules with the same name.
                (f"{name}.{path}" if len(found) > 1 else path, module)
                for path, module in top_levels(root)
                if id(module) in callable_ and not module_ranges.annotated(module)
            ]
        if len(chosen) > _MAX_MODULES:
            self._note(f"the first {_MAX_MODULES} of {len(chosen)} modules at the top of the model have a time each")
        return chosen[:_MAX_MODULES]


def _compiled_in_place(module: Any) -> bool:
    return vars(module).get("_compiled_call_impl") is not None and not module_ranges.annotated(module)
