"""The DataLoaders that a loop reads from: their settings, and the samples per batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from perfkit.record.hooks.constructions import made_at
from perfkit.record.hooks.dataset_tables import name_of, table_of
from perfkit.record.hooks.equal_samples import EqualSampleWatch
from perfkit.run.records import Loader, Mode

#: Maximum of described loaders, and of loaders that are distinguished.
_MAX_DESCRIBED = 16
_MAX_KNOWN = 64


class SeenLoaders:
    """Describes each loader once for each of its roles.

    ``on_samples`` is called with the batch size where it has changed (None: unknown).
    """

    def __init__(self, on_samples: Callable[[int | None], None]) -> None:
        self._on_samples = on_samples
        self._samples: int | None = None
        self._known: dict[int, Any] = {}
        #: Keys of `identify` -> the loader, and how many of its iterators were read from.
        self._loaders: dict[int, Loader] = {}
        self._iterators: dict[int, int] = {}
        self.samples = EqualSampleWatch()

    @property
    def described(self) -> dict[int, Loader]:
        """Key of `identify` -> the loader."""
        return {
            key: msgspec.structs.replace(
                loader, iterators=self._iterators.get(key), compared_samples=self.samples.of(key)
            )
            for key, loader in self._loaders.items()
        }

    def identify(self, iterator: Any) -> int:
        """A key for the loader of this iterator."""
        # The index sampler belongs to the loader and outlives its iterators, one per epoch.
        owner = getattr(iterator, "_index_sampler", iterator)
        key = id(owner)
        if key not in self._known and len(self._known) < _MAX_KNOWN:
            self._known[key] = owner  # so that the id stays this object's
        return key

    def describe(self, key: int, iterator: Any, role: Mode) -> None:
        """Record the loader's settings, once; called before the first batch of each iterator at least."""
        # `_num_yielded` counts up from 0: another loader's batch in between makes no new iterator.
        if getattr(iterator, "_num_yielded", None) == 0:
            self._iterators[key] = self._iterators.get(key, 0) + 1
        if key in self._loaders:
            if self._loaders[key].role == role:
                return
        elif len(self._loaders) >= _MAX_DESCRIBED:
            return
        self._loaders[key] = Loader(
            dataset=type(getattr(iterator, "_dataset", None)).__name__,
            batch_size=getattr(getattr(iterator, "_index_sampler", None), "batch_size", None),
            num_workers=int(getattr(iterator, "_num_workers", 0)),
            pin_memory=bool(getattr(iterator, "_pin_memory", False)),
            prefetch_factor=getattr(iterator, "_prefetch_factor", None),
            persistent_workers=bool(getattr(iterator, "_persistent_workers", False)),
            role=role,
            created_at=made_at(iterator),
            batches=_length(getattr(iterator, "_index_sampler", None)),
            table=table_of(getattr(iterator, "_dataset", None)),
            collate_fn=name_of(getattr(iterator, "_collate_fn", None)),
        )

    def count(self, iterator: Any) -> None:
        """The running step reads from this iterator."""
        size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        samples = size if isinstance(size, int) else None
        if samples != self._samples:
            self._samples = samples
            self._on_samples(samples)


def _length(sampler: Any) -> int | None:
    """How many batches the sampler has; None where it has no length, or computing it fails."""
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 - a sampler of the user's may raise anything
        return None
