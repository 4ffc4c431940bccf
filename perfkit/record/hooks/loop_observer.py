"""Observes the loaders, batches and optimizers of a loop whose phases and steps a framework's adapter reports.

It times nothing: it wraps the fetch of a DataLoader, and uses torch's public hook before an optimizer's step.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit._patches import Patches
from perfkit.ranges import dynamo
from perfkit.record.hooks.constructions import watch_constructions
from perfkit.record.hooks.loaders import SeenLoaders
from perfkit.run.records import Loader, Mode, StepBoundary

#: Optimizers that are followed: a program that updates each parameter in the backward has one for each (chosen).
_MAX_OPTIMIZERS = 64


class LoopObserver:
    """Calls ``on_optimizer`` with each optimizer before its first step, ``on_batch`` with each batch of training, and
    ``on_samples`` with the batch size when it changes. In a program that does not train, with those of its evaluation.
    """

    def __init__(
        self,
        *,
        on_optimizer: Callable[[Any], None],
        on_samples: Callable[[int | None], None],
        on_batch: Callable[[Any], None],
    ) -> None:
        self._on_optimizer = on_optimizer
        self._on_batch = on_batch
        self._seen = SeenLoaders(on_samples)
        #: Optimizers that have stepped and are alive: their numbers, by their ids.
        self._optimizers: dict[int, int] = {}
        self._numbers = itertools.count()
        #: Called with the number of an optimizer that is gone.
        self._on_gone: Callable[[int | None], None] = lambda number: None
        self._thread = get_ident()
        self._patches = Patches()
        #: The iterator of the last fetch, weakly: one that the program has left must end its workers.
        self._last: Callable[[], Any] = lambda: None
        self._counts = self._fetching = self._has_trained = False

    @property
    def loaders(self) -> dict[int, Loader]:
        """The loaders that the loop read from."""
        return self._seen.described

    @property
    def boundary(self) -> StepBoundary | None:
        """What the steps are counted by: the adapter reports where one ends."""
        return StepBoundary(by="marked")

    def leave_boundaries(self) -> None:
        """The program marks where its steps end; nothing to do here."""

    def attach(self) -> None:
        """Attach the hooks."""
        self._watch_loaders()
        self._patches.wrap(_BaseDataLoaderIter, "__next__", self._around)
        before = register_optimizer_step_pre_hook(self._before_optimizer)
        self._patches.add("torch.optim: step pre-hook", before.remove)

    def _watch_loaders(self) -> None:
        """Note where loaders and optimizers are made, and which samples a batch will have."""
        watch_constructions(self._patches)
        if hasattr(_BaseDataLoaderIter, "_next_index"):
            self._patches.wrap(_BaseDataLoaderIter, "_next_index", self._seen.samples.noted)

    def _take(self, iterator: Any, batch: Any) -> None:
        """A batch of training, or of the evaluation that is all that the program does."""
        self._on_batch(batch)
        self._seen.samples.add(self._seen.identify(iterator), iterator, batch)

    def detach(self) -> None:
        """Undo all patches."""
        self._thread = -1
        self._patches.undo()

    def look_again(self) -> None:
        """A pause between two steps; calls of modules are not seen here."""

    def finish(self) -> None:
        """The loop is over; nothing is open here."""

    def _around(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(fetch)
        def __next__(iterator: Any) -> Any:
            if self._fetching or get_ident() != self._thread:
                return fetch(iterator)  # another thread's, or a loader that reads from a loader
            if self._last() is not iterator:
                self._on_new_iterator(iterator)
            self._fetching = True
            try:
                batch = fetch(iterator)
            finally:
                self._fetching = False
            if self._counts:
                self._take(iterator, batch)
            return batch

        return __next__

    def _on_new_iterator(self, iterator: Any) -> None:
        """The batches come from another iterator than before."""
        self._last = weakref.ref(iterator)
        role: Mode = "train" if torch.is_grad_enabled() else "validation"
        self._has_trained = self._has_trained or role == "train"
        self._counts = role == "train" or not self._has_trained
        self._seen.describe(self._seen.identify(iterator), iterator, role)
        if self._counts:
            self._seen.count(iterator)

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._optimizers and get_ident() == self._thread:
            self._add_optimizer(optimizer)

    def _add_optimizer(self, optimizer: Any) -> None:
        if len(self._optimizers) < _MAX_OPTIMIZERS:
            self._optimizers[id(optimizer)] = next(self._numbers)
            with suppress(TypeError):  # a wrapper of the program's may have no weak references
                weakref.finalize(optimizer, self._forget_optimizer, id(optimizer)).atexit = False
            self._on_optimizer(optimizer)

    def _forget_optimizer(self, key: int) -> None:
        self._on_gone(self._optimizers.pop(key, None))

    dynamo.leave_out(_before_optimizer)
