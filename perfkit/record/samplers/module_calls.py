"""Which modules the user's lines called in the traced step, and which calls worked out again what was known.

A call is "again" if this module object was given the very same input before in the step: the same memory with the
same contents (tensors count their in-place changes), and the same plain values. It is not counted

- if the optimizer changed the module's parameters in between and a backward follows the call: two networks that
  train against each other ask the same question twice, and have to;
- if dropout is active in it: the answers differ, and some losses live from that;
- if it comes from the very line that asked before: an optimizer's closure asks until it is content;
- in the backward, where activation checkpointing works out again what was not kept.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perfkit.run.records import ModuleCalls, Phase

#: Where a call was written: the code and the line.
Site = tuple[CodeType, int]

#: Calls that are looked at in the step; the rest are of a model that is called line by line for minutes.
_MOST_CALLS = 10_000


class _Earlier(NamedTuple):
    site: Site
    version: int
    alive: tuple[Any, ...]


class Call:
    """One call that has begun."""

    __slots__ = ("again", "began", "learnt", "module", "parts", "site")

    def __init__(self, site: Site, module: Any) -> None:
        self.site = site
        self.module = module
        #: Whether its input was seen before, and whether the module has learnt since.
        self.again = self.learnt = False
        #: The shapes of its tensors and the memory that they are parts of; None where they are no slices.
        self.parts: tuple[Any, ...] | None = None
        self.began = 0


class _Sum:
    """The calls of one module from one line."""

    def __init__(self, call: Call, passed: tuple[int, int]) -> None:
        self.module, self.parts, self.passed = type(call.module).__name__, call.parts, passed
        self.calls = self.host_ns = 0
        self.sliced = call.parts is not None
        #: Per call that was made again: its time, whether the module had learnt, the backwards before it.
        self.again: list[tuple[int, bool, int]] = []


class ModuleWatch:
    """Told of the calls of modules by `LineTracer`; holds no tensor alive."""

    def __init__(self) -> None:
        self._earlier: dict[tuple[Any, ...], _Earlier] = {}
        self._sums: dict[tuple[Site, int], _Sum] = {}
        self._calls = 0
        #: Backwards that began, and batches that were fetched, so far.
        self.backwards = self.fetches = 0
        #: Whether any module was called yet.
        self.begun = False

    def enter(self, frame: FrameType, site: Site, phase: Phase) -> Call | None:
        """A module is called in ``frame``, from the user's line ``site``; None where it is not to be looked at."""
        self._calls += 1
        if phase == "backward" or self._calls > _MOST_CALLS:
            return None
        given = frame.f_locals
        call = Call(site, given.get("self"))
        values = list(_flat((given.get("args", ()), given.get("kwargs", {}))))
        try:
            self._look(call, values)
        except Exception:  # noqa: BLE001 - a tensor without memory or versions (fake, sparse, of inference mode)
            call.again = False
        call.began = time.perf_counter_ns()
        return call

    def _look(self, call: Call, values: list[Any]) -> None:
        tensors = [value for value in values if _is_tensor(value)]
        if not tensors:
            return
        if all(_is_slice(tensor) for tensor in tensors):
            call.parts = tuple((tuple(one.shape), one.untyped_storage().data_ptr()) for one in tensors)
        module = call.module
        if _drops_out(module):
            return
        key = (id(module), module.training, *map(_fingerprint, values))
        version = sum(parameter._version for parameter in module.parameters())
        before = self._earlier.get(key)
        if before is not None and all(reference() is not None for reference in before.alive):
            call.again = before.site != call.site
            call.learnt = before.version != version
            return
        # Memory that was given back may hold another tensor by now.
        alive = tuple(weakref.ref(one if one._base is None else one._base) for one in tensors)
        self._earlier[key] = _Earlier(call.site, version, alive)

    def leave(self, call: Call) -> None:
        """The call has ended."""
        took = time.perf_counter_ns() - call.began
        passed = (self.backwards, self.fetches)
        sums = self._sums.setdefault((call.site, id(call.module)), _Sum(call, passed))
        sums.calls += 1
        sums.host_ns += took
        sums.sliced &= call.parts == sums.parts and passed == sums.passed
        if call.again:
            sums.again.append((took, call.learnt, self.backwards))

    def rows(self) -> dict[Site, tuple[ModuleCalls, ...]]:
        """The modules that each line called."""
        rows: dict[Site, tuple[ModuleCalls, ...]] = {}
        for (site, _), sums in self._sums.items():
            # Once the parameters were updated, only an answer that nothing learns from was not needed.
            again = [(took, passed) for took, learnt, passed in sums.again if not learnt or passed == self.backwards]
            row = ModuleCalls(
                module=sums.module,
                calls=sums.calls,
                host_ns=sums.host_ns,
                again=len(again),
                again_ns=sum(took for took, _ in again),
                again_backward=any(passed < self.backwards for _, passed in again),
                sliced=sums.sliced,
            )
            rows[site] = (*rows.get(site, ()), row)
        return rows


def _flat(values: Any) -> Iterator[Any]:
    """The values in tuples, lists and dicts."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        for value in values:
            yield from _flat(value)
    else:
        yield values


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_slice(tensor: Any) -> bool:
    """Whether it is one of several equal parts that lie one after the other in memory."""
    whole = tensor.untyped_storage().nbytes()
    mine = tensor.numel() * tensor.element_size()
    return bool(tensor.is_contiguous() and mine and whole >= 2 * mine and tensor.storage_offset() % tensor.numel() == 0)


def _fingerprint(value: Any) -> Any:
    """Equal for two values that are the same for sure."""
    if _is_tensor(value):
        return (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, value._version)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return (type(value), value)
    return object()  # equal to nothing


def _drops_out(module: Any) -> bool:
    return any(
        one.training and getattr(one, "p", getattr(one, "dropout", 0))
        for one in module.modules()
        if "Dropout" in type(one).__name__ or isinstance(getattr(one, "dropout", None), float)
    )
