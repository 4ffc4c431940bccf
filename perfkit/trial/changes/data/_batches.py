"""Other batches from the loaders of a program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit.trial.site import Site


def around_batches(site: Site, around: Callable[[Callable[[Any], Any], Any], Any]) -> None:
    """Call ``around`` with the original and the iterator in place of each `next` of a loader's iterator.

    The step clock marks steps at the same method, so it must be this one (`perfkit.record.hooks.torch_hooks`).
    """

    def wrapper(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            return around(original, iterator) if site.active else original(iterator)

        return __next__

    site.patches.wrap(_BaseDataLoaderIter, "__next__", wrapper)
