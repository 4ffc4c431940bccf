"""Views that are saved: a pickle of one holds all of the memory that it is a part of.

``torch.save`` writes a memory once for all of its tensors, ``pickle`` once for each: it reduces the tensor, and then
calls ``torch.save`` for the memory. Both are heard, on the thread between `start` and `stop`. ``copy.copy`` reduces a
tensor too, and writes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from threading import get_ident
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.storage import TypedStorage, UntypedStorage

from perfkit._code_owner import USER, function_name
from perfkit._patches import Patches
from perfkit._raised_signals import errors_dropped
from perfkit.record.program_values import is_fake, is_tensor, unseen
from perfkit.record.samplers.call_paths import Path, Site, location_of
from perfkit.record.samplers.op_paths import path_of_op
from perfkit.record.samplers.op_schemas import flattened
from perfkit.run.records import SavedViews

#: Behind ``torch.save``: the file is a zip archive, or as before torch 1.6 and for each memory that ``pickle`` writes.
_WRITERS = ("_save", "_legacy_save")
#: Devices whose memory is written: of others an array of the tensor's own elements is.
_DEVICES = ("cpu", "cuda")
#: Views whose lines are remembered, in a step: of at most a quarter of a memory of at least 64 KiB (chosen).
_MAX_VIEWS, _PART, _LEAST = 20_000, 4, 1 << 16
#: The maximum number of saves that are recorded in a step.
_MAX_SAVES = 10_000

#: A tensor by its memory: the address of that, where it begins there, and its shape.
_Key = tuple[int, int, tuple[int, ...]]


class _Tensor(NamedTuple):
    """A tensor that is saved, and its bytes and those of its memory."""

    key: _Key
    bytes: int
    storage_bytes: int


class _Pickled(NamedTuple):
    """What one line saves, and the lines that lead from there to where the view that wastes most was made."""

    calls: int = 0
    bytes: int = 0
    storage_bytes: int = 0
    wasted: int = -1
    passed: Path = ()
    in_memory: bool = True


class SavedViewCounts:
    """Counts the bytes that each line saves in a step, and those that it could do with; keeps no tensor alive."""

    def __init__(self) -> None:
        self._patches = Patches()
        #: The thread that is heard; None between two steps.
        self._thread: int | None = None
        #: The functions that led to where a view was made, innermost first.
        self._made: dict[_Key, tuple[CodeType, ...]] = {}
        #: The tensors of the ``torch.save`` that runs; None where none does.
        self._saving: list[_Tensor] | None = None
        #: The tensor that was reduced outside of those.
        self._reduced: _Tensor | None = None
        self._saves = 0
        self._lines: dict[Site, _Pickled] = {}
        #: Those of the step that saved most.
        self._most: dict[Site, _Pickled] = {}

    def start(self) -> None:
        """A step begins."""
        self._thread = get_ident()
        self._patches.wrap(torch.Tensor, "__reduce_ex__", self._reducing)
        for name in _WRITERS:
            self._patches.wrap(torch.serialization, name, self._writing)

    def stop(self) -> None:
        """The step is over."""
        self._thread = self._saving = self._reduced = None
        self._patches.undo()
        self._most = max(self._most, self._lines, key=lambda lines: sum(one.storage_bytes for one in lines.values()))
        self._lines, self._saves = {}, 0
        self._made.clear()

    def add_view(self, out: Any) -> None:
        """An op has returned a view, or several."""
        views = [one for one in flattened(out) if is_tensor(one) and one.device.type in _DEVICES]
        keys = [of.key for of in map(_measured, views) if of.storage_bytes >= max(_LEAST, _PART * of.bytes)]
        if keys and keys[-1] not in self._made and len(self._made) < _MAX_VIEWS:
            codes = tuple(code for code, _ in path_of_op()[0])
            for key in keys:
                self._made.setdefault(key, codes)

    def _reducing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def reduced(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._thread == get_ident():
                self._add_tensor(tensor)
            return method(tensor, *args, **kwargs)

        return reduced

    def _writing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def written(saved: Any, *args: Any, **kwargs: Any) -> Any:
            if self._thread != get_ident():
                return method(saved, *args, **kwargs)
            if type(saved) in (TypedStorage, UntypedStorage):
                self._add_storage(saved)
                return method(saved, *args, **kwargs)
            around, self._saving = self._saving, []
            try:
                result = method(saved, *args, **kwargs)
                self._add_save(self._saving or (), in_memory=False)
            finally:
                self._saving = around
            return result

        return written

    @unseen
    def _add_tensor(self, tensor: Any) -> None:
        """A tensor is reduced, by ``torch.save``, by ``pickle`` or by ``copy.copy``."""
        self._reduced = None
        with errors_dropped():
            if is_fake(tensor) or tensor.device.type not in _DEVICES or tensor.layout is not torch.strided:
                return
            if self._saving is not None:
                self._saving.append(_measured(tensor))
            else:
                self._reduced = _measured(tensor)

    @unseen
    def _add_storage(self, storage: Any) -> None:
        """A memory is written by itself."""
        tensor, self._reduced = self._reduced, None
        with errors_dropped():
            untyped = storage._untyped_storage if type(storage) is TypedStorage else storage
            if tensor is not None and untyped.data_ptr() == tensor.key[0]:
                self._add_save((tensor,), in_memory=True)

    @unseen
    def _add_save(self, tensors: Iterable[_Tensor], *, in_memory: bool) -> None:
        """These tensors were written, each of their memories once: by ``torch.save``, or by ``pickle`` in memory."""
        with errors_dropped():
            of_storage: dict[int, list[_Tensor]] = {}
            for one in tensors:
                of_storage.setdefault(one.key[0], []).append(one)
            self._saves += 1
            path = path_of_op()[0] if of_storage and self._saves <= _MAX_SAVES else ()
            if not path:
                return
            total = sum(of[0].storage_bytes for of in of_storage.values())
            # A copy of an expanded tensor, or of views that overlap, is larger than what they share.
            needed = sum(min(of[0].storage_bytes, sum(one.bytes for one in of)) for of in of_storage.values())
            before = self._lines.get(path[0], _Pickled())
            passed = before.passed
            if total - needed > before.wasted:
                most = max(of_storage.values(), key=lambda of: of[0].storage_bytes - sum(one.bytes for one in of))
                passed = _up_to(path, self._made.get(most[0].key, ()))
            self._lines[path[0]] = _Pickled(
                before.calls + 1,
                before.bytes + needed,
                before.storage_bytes + total,
                max(before.wasted, total - needed),
                passed,
                before.in_memory and in_memory,
            )

    def rows(self) -> tuple[SavedViews, ...]:
        """The lines that saved more than their tensors, in the step that saved most."""
        return tuple(
            SavedViews(
                file=code.co_filename, line=line, function=function_name(code), owner=USER, calls=one.calls,
                bytes=one.bytes, storage_bytes=one.storage_bytes, passed_at=tuple(map(location_of, one.passed)),
                in_memory=one.in_memory,
            )
            for (code, line), one in self._most.items()
            if one.storage_bytes > one.bytes
        )  # fmt: skip


def _measured(tensor: Any) -> _Tensor:
    storage = tensor.untyped_storage()
    key = storage.data_ptr(), tensor.storage_offset(), tuple(tensor.shape)
    return _Tensor(key, tensor.numel() * tensor.element_size(), storage.nbytes())


def _up_to(path: Path, made_in: tuple[CodeType, ...]) -> Path:
    """The lines from the one that saves to the one in the first function that made the view, itself or by a call."""
    codes = set(made_in)
    return path[: next((at for at, (code, _) in enumerate(path) if code in codes), 0) + 1]
