"""Whether a DataLoader gives the same samples again in each pass over its dataset.

Work that gives the same samples again can be done once, before training; of samples that draw random numbers it cannot.
The indices that the loader draws tell which samples come again, and `fingerprints` whether they are the same. Nothing
is asked of the dataset, no random number is drawn, and of a batch only numbers are kept.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from perfkit import _clock
from perfkit._code_owner import own_work
from perfkit._raised_signals import leave_to_program
from perfkit.record.hooks.sample_fingerprints import RowWidths, UnknownSamples, fingerprints
from perfkit.record.program_values import is_tracing, unseen, without_modes
from perfkit.run.records import ComparedSamples

#: Samples of the first pass that are kept, of each loader (chosen): each later pass has all of them again, and of a
#: million shuffled samples `_MIN_COMPARED` come in its first thirtieth. They take 0.3 MB.
_MAX_KEPT = 2048
#: Samples of later passes that are compared at most, and the fewest from which a result is recorded: of samples of
#: which 10% differ, 95% of 64 are equal once in 10 times, of 512 never in 10,000.
_ENOUGH, _MIN_COMPARED = 512, 64
#: The share of different fingerprints that makes them tell samples apart (chosen).
_DISTINCT = 0.95
#: A batch that changes what can be compared makes the comparison begin again, this often.
_MAX_RESTARTS = 4
#: perfkit's processor time for this: 0.2% of the time that has passed, and so much for the first pass and for the first
#: that is compared, in ns. A batch takes 0.1 ms in a loop, and up to 0.5 ms after a step, which leaves nothing of the
#: code in a cache.
_SHARE, _FIRST_NS = 0.002, 8_000_000
_MAX_LOADERS = 16


_autograd: Any = torch.autograd


class _Loader:
    """What is known of the samples of one loader."""

    def __init__(self) -> None:
        self.widths = RowWidths()
        self.indices: set[int | str] = set()
        self.kept: set[int] = set()
        self.compares = self.done = self.restarted = False
        self.compared = self.equal = self.restarts = 0

    def begin_pass(self) -> bool:
        """A new iterator begins; returns whether it is the first whose samples are compared."""
        # Where the comparison began again at the end of the last pass, almost none of this one's samples are kept.
        few = self.restarted and len(self.kept) < _MIN_COMPARED
        first = bool(self.kept) and not self.compares and not few
        self.restarted, self.compares = False, self.compares or first
        return first

    def add(self, batch: Any, indices: list[int | str]) -> None:
        """Keep the samples of a batch of the first pass, or compare those of a later one."""
        known = 0
        if self.compares:
            known = sum(map(self.indices.__contains__, indices))
            if not known:
                return
        elif len(self.indices) >= _MAX_KEPT:
            return
        found, fewer = fingerprints(batch, len(indices), self.widths)
        if fewer:
            self._restart()
        if self.compares:
            self.compared += known
            self.equal += min(known, sum(map(self.kept.__contains__, found)))
            if self.compared >= _ENOUGH:
                self.finish(self.record)
        else:
            self.indices.update(indices)
            self.kept.update(found)

    def _restart(self) -> None:
        self.restarts += 1
        if self.restarts > _MAX_RESTARTS:
            raise UnknownSamples
        self.indices.clear()
        self.kept.clear()
        self.restarted, self.compares, self.compared, self.equal = True, False, 0, 0

    def finish(self, result: ComparedSamples | None) -> None:
        """Nothing is kept or compared from now on."""
        self.done, self.result = True, result
        self.indices, self.kept = set(), set()

    @property
    def record(self) -> ComparedSamples | None:
        """The counts; None where they say nothing."""
        if self.done:
            return self.result
        if self.compared < _MIN_COMPARED or len(self.kept) < _DISTINCT * len(self.indices):
            return None
        # Padding on the left moves the beginning of a row: the same sample then looks different.
        if self.widths.vary and self.equal < _DISTINCT * self.compared:
            return None
        return ComparedSamples(compared=self.compared, equal=self.equal)


class EqualSampleWatch:
    """Compares the samples of the batches that training gets with those of the first pass over the same loader."""

    def __init__(self) -> None:
        #: When the first batch came, the processor time that was spent since, and when the next batch may be looked at.
        self._began_ns = self._spent_ns = self._resumes_ns = 0
        #: Iterator -> number of the batch -> the indices of its samples.
        self._drawn: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
        self._loaders: dict[int, _Loader] = {}

    def noted(self, draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wraps how an iterator draws the indices of a batch: a loader with workers does that some batches ahead."""

        @functools.wraps(draw)
        def _next_index(iterator: Any) -> Any:
            indices = draw(iterator)
            if type(indices) is list and type(indices[0] if indices else None) in (int, str):
                self._note(iterator, indices)
            return indices

        return _next_index

    def _note(self, iterator: Any, indices: list[Any]) -> None:
        try:
            number = getattr(iterator, "_send_idx", 0)
            drawn = self._drawn.get(iterator)
            if drawn is None:
                drawn = self._drawn[iterator] = {}
            drawn[number] = indices
            # Of another thread, or an evaluation, nothing takes them.
            drawn.pop(
                number - 1 - getattr(iterator, "_num_workers", 0) * (getattr(iterator, "_prefetch_factor", None) or 0),
                None,
            )
        except Exception as error:  # noqa: BLE001 - an iterator of another kind
            leave_to_program(error)

    def add(self, key: int, iterator: Any, batch: Any) -> None:
        """A batch of the training loop, which came from this iterator of the loader; called for every batch."""
        began_ns = _clock.now_ns()
        begins = getattr(iterator, "_num_yielded", None) == 1
        if began_ns < self._resumes_ns and not begins:
            return
        loader = self._loaders.get(key)
        if loader is None:
            if len(self._loaders) >= _MAX_LOADERS:
                return
            loader = self._loaders[key] = _Loader()
        if begins and loader.begin_pass():
            self._spent_ns -= _FIRST_NS
            self._resumes_ns = 0
        if loader.done or began_ns < self._resumes_ns:
            return
        before_ns = time.thread_time_ns()
        try:
            self._look(loader, iterator, batch)
        except Exception as error:  # noqa: BLE001 - batches hold anything
            leave_to_program(error)
            loader.finish(None)
        self._began_ns = self._began_ns or began_ns
        self._spent_ns += time.thread_time_ns() - before_ns
        self._resumes_ns = self._began_ns + round((self._spent_ns - _FIRST_NS) / _SHARE)

    def _look(self, loader: _Loader, iterator: Any, batch: Any) -> None:
        drawn = self._drawn.get(iterator)
        if not getattr(iterator, "_in_order", True):
            raise UnknownSamples
        indices = drawn.pop(getattr(iterator, "_rcvd_idx", 1) - 1, None) if drawn is not None else None
        # A profiler of the program's or of a window would record the ops.
        if indices is not None and not (_autograd._profiler_enabled() or is_tracing()):
            _read(loader, batch, indices)

    def of(self, key: int) -> ComparedSamples | None:
        """What was counted of a loader; None where it is not known whether its samples are the same in each pass."""
        loader = self._loaders.get(key)
        return loader.record if loader is not None else None


@own_work
@unseen
def _read(loader: _Loader, batch: Any, indices: list[int | str]) -> None:
    with without_modes():
        loader.add(batch, indices)
