"""What a dry run replaces in torch so that a script that asks for cuda runs on the CPU; all put back at its end.

Where the script runs on the CPU anyway (``device_of=``), only the backward and ``torch.save`` are followed,
and compiled functions run eagerly.
The replaced attributes are process-wide, so each asks whether the calling thread has a dry run, and does
what torch does where it has none.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
import torch.autograd.graph
import torch.distributed
import torch.overrides
import torch.utils.data
from torch.nn.parallel import comm
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit import _clock
from perfkit._patches import Patches
from perfkit.syncs.device_marks import any_on_device, on_device, pin, put_on_device
from perfkit.syncs.dry_state import CUDA, DryRun, current
from perfkit.syncs.sync_log import Cause

Function = Callable[..., Any]


def _simulating() -> DryRun | None:
    run = current()
    return run if run is not None and run.simulate else None


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

#: Functions of torch.cuda -> what they answer in a dry run.
_CUDA_ANSWERS: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": _NAME,
    "get_device_properties": _PROPERTIES,
    "get_device_capability": (9, 0),
    "is_bf16_supported": True,
    "is_tf32_supported": True,
    "can_device_access_peer": False,
    "is_current_stream_capturing": False,
    "init": None,
    "_lazy_init": None,
    "set_device": None,
    "_exchange_device": 0,
    "_maybe_exchange_device": 0,
    "empty_cache": None,
    "ipc_collect": None,
    # Random numbers of the pretended device come from the CPU's generator, which the script seeds itself.
    "manual_seed": None,
    "manual_seed_all": None,
    "seed": None,
    "seed_all": None,
    "initial_seed": 0,
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "memory_reserved": 0,
    "max_memory_reserved": 0,
    "reset_peak_memory_stats": None,
    "reset_max_memory_allocated": None,
    "reset_accumulated_memory_stats": None,
    "memory_stats": defaultdict(int),
    "memory_summary": f"{_NAME}: no memory is accounted for",
    "mem_get_info": (_MEMORY_BYTES, _MEMORY_BYTES),
    "set_per_process_memory_fraction": None,
    "set_stream": None,
}

#: Functions of torch.cuda.nvtx, which raise in a CPU build.
_NVTX_ANSWERS: dict[str, Any] = {"range_push": 0, "range_pop": 0, "range_start": 0, "range_end": None, "mark": None}

_ACCELERATOR_ANSWERS: dict[str, Any] = {
    "is_available": True,
    "current_accelerator": torch.device("cuda"),
    "device_count": 1,
    "current_device_index": 0,
    "set_device_index": None,
    "empty_cache": None,
}


def _explicit(op: str) -> None:
    run = _simulating()
    if run is not None:
        run.sync(Cause("explicit", op, explicit=True))


class _Event:
    """Stands in for torch.cuda.Event: done at once, its times by the host's clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._at_ns = 0

    def record(self, stream: Any = None) -> None:
        self._at_ns = _clock.now_ns()

    def wait(self, stream: Any = None) -> None:
        """The stream waits, the host does not."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _explicit("Event.synchronize")

    def elapsed_time(self, end: _Event) -> float:
        return (end._at_ns - self._at_ns) / 1e6


class _Stream:
    """Stands in for torch.cuda.Stream, and for the context that selects one."""

    device = CUDA
    device_index = 0
    stream_id = 0
    cuda_stream = 0
    priority = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        """The stream waits, the host does not."""

    def wait_event(self, event: Any) -> None:
        """The stream waits, the host does not."""

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        _explicit("Stream.synchronize")


def _answering(original: Function, answer: Any) -> Function:
    def ask(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if _simulating() is None else answer

    return ask


# Private to torch: the stack of function modes. A test tells when it moves.
_overrides: Any = torch.overrides


def remove_function_mode(mode: Any) -> None:
    """Take a mode off the function mode stack, also from below others that are still open."""
    if mode not in _overrides._get_current_function_mode_stack():
        return
    above = []
    while (top := _overrides._pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _overrides._push_mode(other)


@contextmanager
def _backward(run: DryRun) -> Iterator[None]:
    """Around the autograd engine: it was called with the function mode off, and hooks need it on."""
    calls, run.calls = run.calls, []
    was, run.in_backward = run.in_backward, True
    entered = run.function_mode not in _overrides._get_current_function_mode_stack()
    if entered:
        run.function_mode.__enter__()
    try:
        yield
    finally:
        if entered:
            remove_function_mode(run.function_mode)
        run.calls, run.in_backward = calls, was


def _follow_backward(patches: Patches) -> None:
    # Private to torch; a test tells when it moves. Both modules hold it under their own name.
    engine = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        run = current()
        if run is None:
            return engine(*args, **kwargs)
        with _backward(run):
            return engine(*args, **kwargs)

    patches.set(torch.autograd.graph, "_engine_run_backward", run_backward)
    patches.set(torch.autograd, "_engine_run_backward", run_backward)


def _follow_save(patches: Patches) -> None:
    save = torch.save

    def saving(obj: Any, *args: Any, **kwargs: Any) -> Any:
        run = current()
        if run is None or not any_on_device(obj):
            return save(obj, *args, **kwargs)
        return run.told_once(Cause("copy-d2h", "torch.save", explicit=True), save, (obj, *args), kwargs)

    patches.set(torch, "save", saving)


def _compile_eagerly(patches: Patches) -> None:
    # Dynamo would trace the modes into its graphs, and a fused kernel hides the ops that sync.
    def force_eager() -> None:
        stance = torch.compiler.set_stance("force_eager")
        patches.add("torch.compiler stance", lambda: stance.__exit__(None, None, None))

    if "torch._dynamo" in sys.modules:
        force_eager()
        return
    # Loading Dynamo takes a second, so not before the program does.
    compile_function = torch.compile
    forced = False

    def compiling(*args: Any, **kwargs: Any) -> Any:
        nonlocal forced
        compiled = compile_function(*args, **kwargs)
        if not forced:
            forced = True
            force_eager()
        return compiled

    patches.set(torch, "compile", compiling)


def _pretend_cuda(patches: Patches) -> None:
    for module, answers in (
        (torch.cuda, _CUDA_ANSWERS),
        (torch.cuda.nvtx, _NVTX_ANSWERS),
        (torch.accelerator, _ACCELERATOR_ANSWERS),
    ):
        for name, answer in answers.items():
            # Not all of them are in the oldest torch that perfkit takes.
            if hasattr(module, name):
                patches.set(module, name, _answering(getattr(module, name), answer))
    for module, op in ((torch.cuda, "cuda.synchronize"), (torch.accelerator, "accelerator.synchronize")):
        patches.set(module, "synchronize", _waiting(module.synchronize, op))
    _pretend_rng(patches)


def _waiting(original: Function, op: str) -> Function:
    def synchronize(*args: Any, **kwargs: Any) -> Any:
        if _simulating() is None:
            return original(*args, **kwargs)
        return _explicit(op)

    return synchronize


def _pretend_rng(patches: Patches) -> None:
    def getting(original: Function, several: bool) -> Function:
        def get(*args: Any, **kwargs: Any) -> Any:
            if _simulating() is None:
                return original(*args, **kwargs)
            state = torch.get_rng_state()
            return [state] if several else state

        return get

    def setting(original: Function) -> Function:
        def set_state(new_state: Any, *args: Any, **kwargs: Any) -> Any:
            if _simulating() is None:
                return original(new_state, *args, **kwargs)
            return torch.set_rng_state(new_state[0] if isinstance(new_state, (list, tuple)) else new_state)

        return set_state

    patches.set(torch.cuda, "get_rng_state", getting(torch.cuda.get_rng_state, several=False))
    patches.set(torch.cuda, "get_rng_state_all", getting(torch.cuda.get_rng_state_all, several=True))
    patches.set(torch.cuda, "set_rng_state", setting(torch.cuda.set_rng_state))
    patches.set(torch.cuda, "set_rng_state_all", setting(torch.cuda.set_rng_state_all))


def _pretend_streams(patches: Patches) -> None:
    patches.set(torch.cuda, "Stream", _Stream)
    patches.set(torch.cuda, "Event", _Event)
    patches.set(torch, "Stream", _device_class(torch.Stream, _Stream))
    patches.set(torch, "Event", _device_class(torch.Event, _Event))
    patches.set(torch.accelerator, "current_stream", _answering(torch.accelerator.current_stream, _Stream()))
    # Its C++ code takes only torch's own streams.
    patches.set(torch.Tensor, "record_stream", _answering(torch.Tensor.record_stream, None))
    patches.set(torch.cuda, "current_stream", _answering(torch.cuda.current_stream, _Stream()))
    patches.set(torch.cuda, "default_stream", _answering(torch.cuda.default_stream, _Stream()))
    patches.set(torch.cuda, "stream", _answering(torch.cuda.stream, _Stream()))


def _device_class(original: Any, pretended: Callable[[], Any]) -> Any:
    """A class that makes one of ``pretended`` for cuda and one of ``original`` else, and counts both as instances."""

    class Instances(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (original, _Stream, _Event))

    class ByDevice(metaclass=Instances):
        def __new__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            if _simulating() is not None and device is not None and torch.device(device).type == "cuda":
                return pretended()
            return original(*(() if device is None else (device,)), *args, **kwargs)

    return ByDevice


def _pretend_generator(patches: Patches) -> None:
    # Instances: the program may hold some of torch's own from before. One for cuda is one of the CPU.
    original = torch.Generator
    patches.set(torch, "Generator", _device_class(original, original))


def _pretend_autocast(patches: Patches) -> None:
    start = torch.autocast.__init__

    def pretend(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda" and _simulating() is not None:
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        start(self, device_type, dtype, *args, **kwargs)

    patches.set(torch.autocast, "__init__", pretend)


def _pretend_groups(patches: Patches) -> None:
    # C++ sees the true device of the tensors; optimizers and clipping compare it with `.device`.
    group = torch._C._group_tensors_by_device_and_dtype

    def pretend(*args: Any, **kwargs: Any) -> Any:
        groups = group(*args, **kwargs)
        if _simulating() is None:
            return groups
        told = {}
        for (device, dtype), rows in groups.items():
            first = next((tensor for tensor in rows[0][0] if tensor is not None), None)
            told[CUDA if first is not None and on_device(first) else device, dtype] = rows
        return told

    patches.set(torch._C, "_group_tensors_by_device_and_dtype", pretend)


def _pretend_load(patches: Patches) -> None:
    load = torch.load

    def loading(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        run = _simulating()
        wanted = isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == "cuda"
        if run is None or not wanted:
            return load(f, map_location, *args, **kwargs)
        loaded = load(f, "cpu", *args, **kwargs)
        _for_each_tensor(loaded, put_on_device)
        run.sync(Cause("copy-h2d", "torch.load", explicit=True))
        return loaded

    patches.set(torch, "load", loading)


def _for_each_tensor(value: Any, action: Callable[[torch.Tensor], None]) -> None:
    if isinstance(value, torch.Tensor):
        action(value)
    elif isinstance(value, dict):
        for item in value.values():
            _for_each_tensor(item, action)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _for_each_tensor(item, action)


def _pretend_pinning(patches: Patches) -> None:
    start, advance = _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__
    pinning: Any = "_perfkit_pins"

    def begin(self: Any, loader: Any) -> None:
        if _simulating() is None:
            return start(self, loader)
        # The loader must not try to pin: that needs CUDA, in a thread of its own. Its batches get the mark.
        wanted, loader.pin_memory = loader.pin_memory, False
        try:
            start(self, loader)
        finally:
            loader.pin_memory = wanted
        setattr(self, pinning, wanted)
        return None

    def next_batch(self: Any) -> Any:
        batch = advance(self)
        if getattr(self, pinning, False):
            _for_each_tensor(batch, pin)
        return batch

    patches.set(_BaseDataLoaderIter, "__init__", begin)
    patches.set(_BaseDataLoaderIter, "__next__", next_batch)


def _pretend_scatter(patches: Patches) -> None:
    # DataParallel's C++ code is in CUDA builds only; on one device it hands the batch to that.
    scatter = comm.scatter

    def scattering(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _simulating() is None:
            return scatter(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]  # torch's is untyped
        return (tensor.to(CUDA, non_blocking=True),)

    patches.set(comm, "scatter", scattering)


#: Calls of torch.distributed that wait for the device, with NCCL.
_COLLECTIVES = (
    "barrier",
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
)
_NCCL = "with NCCL it waits for the device, and a dry run has none"


def _pretend_collectives(patches: Patches) -> None:
    if not torch.distributed.is_available():
        return

    def collective(original: Function) -> Function:
        cause = Cause("collective", f"dist.{original.__name__}", "may", _NCCL, explicit=original.__name__ == "barrier")

        def communicate(*args: Any, **kwargs: Any) -> Any:
            run = _simulating()
            return original(*args, **kwargs) if run is None else run.told_once(cause, original, args, kwargs)

        return communicate

    for name in _COLLECTIVES:
        # Both modules hold them under their own name.
        replaced = collective(getattr(torch.distributed, name))
        patches.set(torch.distributed, name, replaced)
        patches.set(torch.distributed.distributed_c10d, name, replaced)


class _Group:
    """Shims that stand as long as a dry run of any thread needs them."""

    def __init__(self, *installers: Callable[[Patches], None]) -> None:
        self._installers = installers
        self._patches = Patches()
        self._users = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        with self._lock:
            if self._users == 0:
                try:
                    for installer in self._installers:
                        installer(self._patches)
                except BaseException:
                    self._patches.undo()
                    raise
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._patches.undo()


_following = _Group(_follow_backward, _follow_save, _compile_eagerly)
_pretending = _Group(
    _pretend_cuda,
    _pretend_streams,
    _pretend_generator,
    _pretend_autocast,
    _pretend_groups,
    _pretend_load,
    _pretend_pinning,
    _pretend_scatter,
    _pretend_collectives,
)


def install(*, simulate: bool) -> None:
    """Replace what a dry run needs; on failure nothing stays replaced."""
    _following.acquire()
    if simulate:
        try:
            _pretending.acquire()
        except BaseException:
            _following.release()
            raise


def remove(*, simulate: bool) -> None:
    """Put back what `install` replaced, unless a dry run of another thread still needs it."""
    if simulate:
        _pretending.release()
    _following.release()
