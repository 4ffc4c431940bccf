"""Answer with samples that were read before.

Once a dataset that is given to a DataLoader has read 64 samples in a process, ``dataset[i]`` answers with one of them.
It shows the most that keeping samples in memory could save; where samples are drawn or augmented at random, only what
comes before that can be kept. Streams, lists and tensors are left as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from perfkit.trial.site import Site

ID = "dataset-in-memory"
ANSWERS = ("input-bound", "cpu-preprocessing")
KIND = "bound"
LINES = "# no lines: the most that a dataset in memory could save"

#: Samples that are kept of a dataset: each worker has read them within a few batches, and they fit into memory.
_KEPT = 64


def apply(site: Site, value: None) -> None:
    """Wrap ``__getitem__`` of the classes of datasets that loaders are made with."""
    # torch is imported where a change is applied, not where changes are listed.
    from perfkit.trial.changes.data._loaders import with_arguments

    # By id: a dataset need not be hashable. It is kept with its samples, so that no other one gets its id.
    known: dict[int, tuple[Any, list[Any]]] = {}

    def one_of_them(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __getitem__(self: Any, index: Any) -> Any:
            if not site.active or not hasattr(index, "__index__"):
                return original(self, index)
            kept = known.setdefault(id(self), (self, []))[1]
            if len(kept) < _KEPT:
                kept.append(original(self, index))
                return kept[-1]
            return kept[int(index) % _KEPT]

        return __getitem__

    def by_one(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __getitems__(self: Any, indices: Any) -> Any:
            return [self[index] for index in indices] if site.active else original(self, indices)

        return __getitems__

    wrapped: set[type] = set()

    def changed(given: dict[str, Any]) -> dict[str, Any]:
        kind = type(given.get("dataset"))
        if isinstance(getattr(kind, "__getitem__", None), FunctionType):
            site.used()
            if kind not in wrapped:
                wrapped.add(kind)
                site.patches.wrap(kind, "__getitem__", one_of_them)
                site.patches.wrap(kind, "__getitems__", by_one)
        return {}

    with_arguments(site, changed)
