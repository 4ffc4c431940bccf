"""Replay one batch.

Each iteration over a DataLoader loads its first batch and answers with it until the end of the epoch. What the step
then takes is what a loader that never waits would leave. Streams, whose end nobody knows, are left as they are.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

from perfkit.trial.site import Site

ID = "one-batch"
ANSWERS = ("input-bound", "cpu-preprocessing")
KIND = "bound"
LINES = "# no lines: the most that faster loading could save"


def apply(site: Site, value: None) -> None:
    """Answer with the first batch of each iteration."""
    import torch  # where a change is applied, not where changes are listed
    from torch.utils._pytree import tree_flatten, tree_unflatten  # torch

    from perfkit.trial.changes.data._batches import around_batches  # imports torch

    class Replay:
        """One batch, and how often it is still to come."""

        def __init__(self, batch: Any, count: int) -> None:
            self.left = count
            self._leaves, self._form = tree_flatten(batch)
            # The program may write into a batch; it then gets a fresh copy.
            self._clean = [one.clone() if isinstance(one, torch.Tensor) else None for one in self._leaves]
            self._versions = [version_of(one) for one in self._leaves]

        def next(self) -> Any:
            self.left -= 1
            for number, leaf in enumerate(self._leaves):
                clean = self._clean[number]
                if clean is None:
                    self._leaves[number] = copy.copy(leaf)
                elif version_of(leaf) != self._versions[number]:
                    self._leaves[number] = clean.clone()
                    self._versions[number] = version_of(self._leaves[number])
            return tree_unflatten(self._leaves, self._form)

    def version_of(leaf: Any) -> int | None:
        return leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else None

    replays: weakref.WeakKeyDictionary[Any, Replay | None] = weakref.WeakKeyDictionary()

    def around(next_of: Callable[[Any], Any], iterator: Any) -> Any:
        if iterator not in replays:
            try:
                count = len(iterator)
            except (TypeError, NotImplementedError):
                count = 0
            batch = next_of(iterator)
            replays[iterator] = Replay(batch, count - 1) if count else None
            return batch
        replay = replays[iterator]
        if replay is None:
            return next_of(iterator)
        if replay.left == 0:
            del replays[iterator]  # a loader that keeps its workers uses it for the next epoch too
            raise StopIteration
        site.used()
        return replay.next()

    around_batches(site, around)
