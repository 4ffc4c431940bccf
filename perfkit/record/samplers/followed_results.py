"""Results of ops that are followed through one step to what reads them: what samplers of orders of ops have in common.

`ConstantOpLog` hands on the ops of a step, without views: a tensor is known by its memory.
"""

from __future__ import annotations

import sys
import weakref
from abc import ABC, abstractmethod
from types import CodeType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from perfkit._raised_signals import errors_dropped, leave_to_program
from perfkit.record.program_values import is_tensor, unseen, without_modes
from perfkit.record.samplers.call_paths import Site
from perfkit.record.samplers.op_schemas import flattened

#: Tensors that are followed in a step.
MAX_TENSORS = 10_000
#: Tells whether the autograd engine runs what is heard. Private to torch; without it all of a backward are reads.
_graph_task: Any = getattr(torch._C, "_current_graph_task_id", lambda: _NO_TASK)
_NO_TASK = -1
#: How many tensors and others refer to memory. Private to torch; without it a result that exists is taken as kept.
_count_users: Any = getattr(torch._C, "_storage_Use_Count", None)


class MemoryReference(StorageWeakRef):
    """A weak reference to the memory of a tensor, by whose ``cdata`` it is known, and to the tensor."""

    def __init__(self, tensor: Any) -> None:
        super().__init__(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's class has no annotations
        self._tensor = weakref.ref(tensor)

    def is_variable(self) -> bool:
        """Whether only the tensor has the memory, and of Python's objects only one refers to it, as a variable does."""
        with errors_dropped(), without_modes():  # whatever the program has made of the tensor
            if _count_users is None or (tensor := self._tensor()) is None:
                return False
            # What a graph has saved is the tensor too, and keeps its object.
            saved = int(tensor._use_count() > 1) if hasattr(tensor, "_use_count") else 0
            del tensor
            own = torch.empty(1, device="cpu")
            known = MemoryReference(own)
            return _count_users(self.cdata) <= _count_users(known.cdata) and (
                self._object_users() <= known._object_users() + saved
            )
        return False

    def _object_users(self) -> int:
        return sys.getrefcount(self._tensor())


class _Made(Protocol):
    """What an op of a line has made; ``is_needed`` once something needs the result itself, or may."""

    site: Site
    is_needed: bool


class _Followed(Protocol):
    """Memory with a result. The reference says whether it still exists, and keeps its key."""

    @property
    def made(self) -> _Made: ...

    @property
    def reference(self) -> MemoryReference: ...


M = TypeVar("M", bound=_Followed)


class FollowedResults(ABC, Generic[M]):
    """Knows the memory of results, and what reads it elsewhere; keeps no tensor alive."""

    def __init__(self) -> None:
        self._known: dict[int, M] = {}
        #: Whether what reads a tensor may have been missed.
        self.lost = False

    def add(self, func: Any, inputs: tuple[Any, Any], out: Any, site: Site, *, in_library: bool) -> None:
        """An op of a line of the user's got these arguments, positional and named, and has returned ``out``."""
        try:
            self._follow(func.overloadpacket.__name__.removesuffix("_"), inputs, out, site, in_library)
        except Exception as error:  # noqa: BLE001 - tensors of any kind
            self.lost = True
            leave_to_program(error)

    @abstractmethod
    def _follow(self, name: str, inputs: tuple[Any, Any], out: Any, site: Site, in_library: bool) -> None:
        """An op of this name, without the underscore of one in place, has returned ``out``; may raise."""

    def add_elsewhere(self, inputs: tuple[Any, Any], *, missed: bool) -> None:
        """An op that is not looked at got these arguments; ``missed`` where it may make what others read."""
        self.lost |= missed
        # What the backward reads is that of the other order, in the other order.
        if self._known and _graph_task() == _NO_TASK:
            for tensor in flattened(inputs):
                self.add_read(tensor)

    def add_read(self, tensor: Any) -> None:
        """Python reads all values of a tensor."""
        if (memory := self._memory_of(tensor)) is not None:
            memory.made.is_needed = True

    def _memory_of(self, tensor: Any) -> M | None:
        return self._known.get(key_of(tensor)) if is_tensor(tensor) else None

    @unseen
    def end_step(self) -> None:
        """The step is over: a result that still exists is kept by the program, or is only a variable of its loop."""
        running, frame = set[CodeType](), sys._getframe()
        while frame is not None:
            running.add(frame.f_code)
            frame = frame.f_back  # type: ignore[assignment]  # the last one has None
        for memory in self._known.values():
            # Not that of what a frame of the loop has kept as well: in a list, or as a view, which no op makes.
            if not memory.reference.expired() and (
                memory.made.site[0] not in running or not memory.reference.is_variable()
            ):
                memory.made.is_needed = True
        self._known.clear()


def key_of(tensor: Any) -> int:
    """What tells its memory from all other as long as that is referred to; 0 where it has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0
