"""The processes that train together: their backend, and what DistributedDataParallel measured by itself."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from perfkit._patches import Patches
from perfkit.record.live_objects import instances_of, subclasses_of
from perfkit.run.records import ProcessGroup, ReducerTimes

#: Models that are remembered: a program trains with a few.
_MAX_MODELS = 16
#: Steps after which the Reducer has times: it samples the first ten.
_FIRST_STEPS = 10


def _default_group() -> Any | None:
    """torch.distributed, where the program has set up a group of several processes."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def _backends(distributed: Any) -> dict[str, str]:
    """Type of device -> what exchanges its tensors, of the default group."""
    parts = (part.partition(":") for part in str(distributed.get_backend_config()).split(","))
    return {device: backend for device, _, backend in parts}


def cpu_backend() -> str | None:
    """What exchanges tensors that are on a CPU; None: nothing, or the process trains alone."""
    distributed = _default_group()
    return _backends(distributed).get("cpu") if distributed is not None else None


class ReducedModels:
    """The models that the program wraps in DistributedDataParallel, weakly; true once there is one."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[Any]] = []
        self._patches = Patches()
        #: The record of the default group as it was read last; None: this process trains alone.
        self.group: ProcessGroup | None = None
        #: The step from which on the group is read again.
        self._next = 0

    def attach(self) -> None:
        """See the models from now on, and those that are there already."""
        self._models.clear()
        if _default_group() is not None:
            for model in instances_of(subclasses_of(DistributedDataParallel)):
                self._add(model)
        self._patches.wrap(DistributedDataParallel, "__init__", self._noting)

    def detach(self) -> None:
        """See no more of them."""
        self._patches.undo()

    def __bool__(self) -> bool:
        return bool(self._models)

    def _add(self, model: Any) -> None:
        if len(self._models) < _MAX_MODELS:
            self._models.append(weakref.ref(model))

    def _noting(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            init(model, *args, **kwargs)
            self._add(model)

        return __init__

    def read(self) -> None:
        """Read the default group, if the program still has one."""
        distributed = _default_group()
        if distributed is None:
            return
        backends = _backends(distributed)
        names = set(backends.values())
        one = names.pop() if len(names) == 1 else ",".join(f"{device}:{name}" for device, name in backends.items())
        times = [found for ref in self._models if (model := ref()) is not None and (found := reducer_times(model))]
        longest = max(times, key=lambda found: found.communication_ns, default=None)
        before = self.group.reducer if self.group is not None else None
        self.group = ProcessGroup(backend=one, size=distributed.get_world_size(), reducer=longest or before)

    def read_if_due(self, step: int) -> None:
        """Read between two steps, after twice as many steps as the last time: a program may end its group early."""
        if step >= self._next and _default_group() is not None:
            self._next = max(_FIRST_STEPS, 2 * step)
            self.read()


def reducer_times(model: Any) -> ReducerTimes | None:
    """What the Reducer of a model has measured; None where it has not yet, or this torch names it otherwise.

    The data are a copy of what the Reducer keeps anyway: reading them costs 5 µs and waits for no device.
    """
    try:
        data = model._get_ddp_logging_data()
        times = ReducerTimes(
            backward_ns=int(data["avg_backward_compute_time"]),
            communication_ns=int(data["avg_backward_comm_time"]),
            overlap_ns=int(data["avg_backward_compute_comm_overlap_time"]),
        )
    except Exception:  # noqa: BLE001 - private, and only one more number
        return None
    return times if times.communication_ns > 0 else None
