"""The simulated CUDA device: what is replaced in torch so that a script that requests cuda runs on the CPU.

The replaced attributes are process-wide. Each checks whether the calling thread simulates the device, and calls torch's
own function if not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
import torch.distributed
import torch.utils.data
from torch.nn.parallel import comm
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit import _clock, _torch_versions
from perfkit._patches import Patches, SharedPatches
from perfkit.syncs.dry_run.device_marks import mark_on_device, mark_pinned, on_device
from perfkit.syncs.dry_run.thread_state import CUDA, simulation
from perfkit.syncs.sync_log import Cause

Function = Callable[..., Any]

#: 80 GiB: the memory of the GPUs that most scripts are written for.
_MEMORY_BYTES = 80 * 2**30
_NAME = "perfkit simulated device"
_PROPERTIES = SimpleNamespace(
    name=_NAME,
    major=9,
    minor=0,
    total_memory=_MEMORY_BYTES,
    multi_processor_count=132,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    is_integrated=False,
    is_multi_gpu_board=False,
)

#: Functions of torch.cuda without a result.
_CUDA_NO_RESULT = (
    *("init", "_lazy_init", "set_device", "set_stream", "empty_cache", "ipc_collect"),
    # Random numbers of the simulated device come from the CPU's generator, which the script seeds itself.
    *("manual_seed", "manual_seed_all", "seed", "seed_all"),
    *("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats"),
    "set_per_process_memory_fraction",
)

#: Functions of torch.cuda that return 0.
_CUDA_ZERO = (
    *("current_device", "_exchange_device", "_maybe_exchange_device", "initial_seed"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
)

_ACCELERATOR = _torch_versions.accelerator(torch)

#: Module -> its functions -> what they return in a dry run.
_RESULTS: dict[Any, dict[str, Any]] = {
    torch.cuda: {
        **dict.fromkeys(_CUDA_NO_RESULT),
        **dict.fromkeys(_CUDA_ZERO, 0),
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "get_device_name": _NAME,
        "get_device_properties": _PROPERTIES,
        "get_device_capability": (9, 0),
        "is_bf16_supported": True,
        "is_tf32_supported": True,
        "can_device_access_peer": False,
        "is_current_stream_capturing": False,
        "memory_stats": defaultdict(int),
        "memory_summary": f"{_NAME}: memory is not measured",
        "mem_get_info": (_MEMORY_BYTES, _MEMORY_BYTES),
    },
    # These raise in a CPU build.
    torch.cuda.nvtx: {"range_push": 0, "range_pop": 0, "range_start": 0, "range_end": None, "mark": None},
    _ACCELERATOR: {
        "is_available": True,
        "current_accelerator": torch.device("cuda"),
        "device_count": 1,
        "current_device_index": 0,
        "set_device_index": None,
        "empty_cache": None,
    },
}


def _simulated(original: Function, simulated: Function) -> Function:
    """A function that calls ``simulated`` in a thread that simulates the device, else ``original``."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if simulation() is None else simulated(*args, **kwargs)

    choose.__wrapped__ = original  # type: ignore[attr-defined]  # for `_env.cuda_in_use`
    return choose


def _returning(result: Any) -> Function:
    return lambda *args, **kwargs: result


def _report_wait(op: str) -> None:
    run = simulation()
    if run is not None:
        run.sync(Cause("explicit", op, explicit=True))


class _SimulatedEvent:
    """Replaces torch.cuda.Event: complete at once, with times of the host's clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._at_ns = 0

    def record(self, stream: Any = None) -> None:
        self._at_ns = _clock.now_ns()

    def wait(self, stream: Any = None) -> None:
        """The stream waits, the host does not."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _report_wait("Event.synchronize")

    def elapsed_time(self, end: _SimulatedEvent) -> float:
        return (end._at_ns - self._at_ns) / 1e6


class _SimulatedStream:
    """Replaces torch.cuda.Stream, and the context that selects one."""

    device = CUDA
    device_index = 0
    stream_id = 0
    cuda_stream = 0
    priority = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _SimulatedStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        """The stream waits, the host does not."""

    def wait_event(self, event: Any) -> None:
        """The stream waits, the host does not."""

    def record_event(self, event: _SimulatedEvent | None = None) -> _SimulatedEvent:
        event = event or _SimulatedEvent()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        _report_wait("Stream.synchronize")


def _simulate_functions(patches: Patches) -> None:
    for module, results in _RESULTS.items():
        for name, result in results.items():
            # Not all of them, nor each module, exist in every version of torch.
            if hasattr(module, name):
                patches.set(module, name, _simulated(getattr(module, name), _returning(result)))
    for module, op in ((torch.cuda, "cuda.synchronize"), (_ACCELERATOR, "accelerator.synchronize")):
        if module is not None:
            patches.set(module, "synchronize", _simulated(module.synchronize, _waiting(op)))


def _waiting(op: str) -> Function:
    return lambda *args, **kwargs: _report_wait(op)


def _simulate_random_state(patches: Patches) -> None:
    def set_state(new_state: Any, *args: Any, **kwargs: Any) -> None:
        torch.set_rng_state(new_state[0] if isinstance(new_state, (list, tuple)) else new_state)

    for name, simulated in (
        ("get_rng_state", lambda *args, **kwargs: torch.get_rng_state()),
        ("get_rng_state_all", lambda *args, **kwargs: [torch.get_rng_state()]),
        ("set_rng_state", set_state),
        ("set_rng_state_all", set_state),
    ):
        patches.set(torch.cuda, name, _simulated(getattr(torch.cuda, name), simulated))


def _simulate_streams(patches: Patches) -> None:
    patches.set(torch.cuda, "Stream", _SimulatedStream)
    patches.set(torch.cuda, "Event", _SimulatedEvent)
    patches.set(torch, "Stream", _device_class(torch.Stream, _SimulatedStream))
    patches.set(torch, "Event", _device_class(torch.Event, _SimulatedEvent))
    for module, name in (
        (torch.cuda, "current_stream"),
        (torch.cuda, "default_stream"),
        (torch.cuda, "stream"),
        (_ACCELERATOR, "current_stream"),
    ):
        if module is not None:
            patches.set(module, name, _simulated(getattr(module, name), _returning(_SimulatedStream())))
    # Its C++ code accepts only torch's own streams.
    patches.set(torch.Tensor, "record_stream", _simulated(torch.Tensor.record_stream, _returning(None)))


def _device_class(original: Any, simulated: Callable[[], Any]) -> Any:
    """A class that creates ``simulated`` for cuda and ``original`` otherwise, with both as its instances."""

    class Instances(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (original, _SimulatedStream, _SimulatedEvent))

    class ByDevice(metaclass=Instances):
        def __new__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            if simulation() is not None and device is not None and torch.device(device).type == "cuda":
                return simulated()
            return original(*(() if device is None else (device,)), *args, **kwargs)

    return ByDevice


def _simulate_generator(patches: Patches) -> None:
    # A generator for cuda is one of the CPU. Those that the program created before are instances too.
    original = torch.Generator
    patches.set(torch, "Generator", _device_class(original, original))


def _simulate_autocast(patches: Patches) -> None:
    start = torch.autocast.__init__

    def begin(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda" and simulation() is not None:
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        start(self, device_type, dtype, *args, **kwargs)

    patches.set(torch.autocast, "__init__", begin)


def _simulate_groups(patches: Patches) -> None:
    # C++ reads the real device of the tensors; optimizers and clipping compare it with `.device`.
    group = torch._C._group_tensors_by_device_and_dtype

    def grouping(*args: Any, **kwargs: Any) -> Any:
        by_device = {}
        for (device, dtype), rows in group(*args, **kwargs).items():
            first = next((tensor for tensor in rows[0][0] if tensor is not None), None)
            by_device[CUDA if first is not None and on_device(first) else device, dtype] = rows
        return by_device

    patches.set(torch._C, "_group_tensors_by_device_and_dtype", _simulated(group, grouping))


def _simulate_load(patches: Patches) -> None:
    load = torch.load

    def loading(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        run = simulation()
        wanted = isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == "cuda"
        if run is None or not wanted:
            return load(f, map_location, *args, **kwargs)
        loaded = load(f, "cpu", *args, **kwargs)
        mark_on_device(loaded)
        run.sync(Cause("copy-h2d", "torch.load", explicit=True))
        return loaded

    patches.set(torch, "load", loading)


def _simulate_pinning(patches: Patches) -> None:
    start, advance = _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__
    pinning: Any = "_perfkit_pins"

    def begin(self: Any, loader: Any) -> None:
        # The loader must not try to pin: that needs CUDA, in another thread. Its batches are marked instead.
        wanted, loader.pin_memory = loader.pin_memory, False
        try:
            start(self, loader)
        finally:
            loader.pin_memory = wanted
        setattr(self, pinning, wanted)

    def next_batch(self: Any) -> Any:
        batch = advance(self)
        if getattr(self, pinning, False):
            mark_pinned(batch)
        return batch

    patches.set(_BaseDataLoaderIter, "__init__", _simulated(start, begin))
    patches.set(_BaseDataLoaderIter, "__next__", next_batch)


def _simulate_scatter(patches: Patches) -> None:
    # The C++ code of DataParallel is in CUDA builds only; for one device it moves the batch there.
    def scattering(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (tensor.to(CUDA, non_blocking=True),)

    patches.set(comm, "scatter", _simulated(comm.scatter, scattering))


#: Calls of torch.distributed that wait for the device, with NCCL.
_COLLECTIVES = (
    "barrier",
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
)
_NCCL = "with NCCL it waits for the device; a dry run has no NCCL"


def _simulate_collectives(patches: Patches) -> None:
    if not torch.distributed.is_available():
        return

    def collective(original: Function) -> Function:
        cause = Cause("collective", f"dist.{original.__name__}", "may", _NCCL, explicit=original.__name__ == "barrier")

        def communicate(*args: Any, **kwargs: Any) -> Any:
            run = simulation()
            return original(*args, **kwargs) if run is None else run.report_once(cause, original, args, kwargs)

        return communicate

    for name in _COLLECTIVES:
        # Both modules hold them under their own name.
        replaced = collective(getattr(torch.distributed, name))
        patches.set(torch.distributed, name, replaced)
        patches.set(torch.distributed.distributed_c10d, name, replaced)


SIMULATED_CUDA = SharedPatches(
    "simulated CUDA device",
    _simulate_functions,
    _simulate_random_state,
    _simulate_streams,
    _simulate_generator,
    _simulate_autocast,
    _simulate_groups,
    _simulate_load,
    _simulate_pinning,
    _simulate_scatter,
    _simulate_collectives,
)
