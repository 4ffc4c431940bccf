"""Builds Kineto traces: host threads that launch, and devices whose streams run what was launched; times in µs.

A step is a function of a `Timeline`. `Timeline.run` launches a kernel or copy from an op, `wait` and `read` block the
host, `all_reduce` communicates on a stream of its own, `spend` lets the host pass time in Python, `frame` and `range`
are context managers. The host is ahead of the device unless something blocks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfkit.diagnosis import Diagnosis, diagnose

STEPS = 5
GEMM_FP32 = "ampere_sgemm_128x64_nn"
GEMM_TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16"
GEMM_BF16 = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BF16 = "c10::BFloat16"
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"

#: Multiprocessors and compute capability by a word of the device's name.
CHIPS = {
    "H100": (132, 9, 0),
    "V100": (80, 7, 0),
    "L4": (58, 8, 9),
    "4090": (128, 8, 9),
    "MI300X": (304, 9, 4),
}

COMPUTE, COMMUNICATION, COPY = 7, 20, 16
#: The process ids and thread ids of the host; devices have process ids from 0 on.
HOST, MAIN, AUTOGRAD = 9, 1, 2

Step = Callable[["Timeline"], object]


class Timeline:
    """One trace that is being built."""

    def __init__(self, folder: Path, device: str | None = A100, *, devices: int = 1, world_size: int = 1) -> None:
        self.file = folder / "t.json"
        self.names = [device] * devices if device is not None else []
        self.world_size = world_size
        self.events: list[dict[str, Any]] = []
        self.now = 1_000.0
        self.free: dict[tuple[int, int], float] = {}
        self.thread = MAIN
        self.number = 0
        self._correlation = 0
        self._frames: list[int] = []
        self._frame = 0

    # -- the host

    def add(self, cat: str, name: str, start: float, end: float, tid: int = MAIN, pid: int = HOST, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": end - start, "args": args}
        )

    def spend(self, lasts: float) -> None:
        """The host is in the Python code around for this long."""
        self.now += lasts

    def op(self, name: str, lasts: float, **given: Any) -> None:
        """An op of the host that launches nothing."""
        start, self.now = self.now, self.now + lasts
        self.add("cpu_op", name, start, self.now, self.thread, **given)

    def call(self, name: str, lasts: float, **args: Any) -> None:
        """A call of the runtime that launches nothing."""
        start, self.now = self.now, self.now + lasts
        self.add("cuda_runtime", name, start, self.now, self.thread, **args)

    @property
    def has_frames(self) -> bool:
        """Whether Python functions are recorded."""
        return self._frame > 0

    @contextmanager
    def frame(self, function: str, line: int, file: str = "train.py") -> Iterator[None]:
        """A Python function of the user's, which begins at this line."""
        self._frame += 1
        own, parent = self._frame, self._frames[-1] if self._frames else None
        self._frames.append(own)
        start = self.now
        yield
        self._frames.pop()
        self._python(f"{file}({line}): {function}", start, own, parent)

    def python(self, name: str, start: float) -> None:
        """A call from the Python code around that ends now."""
        self._frame += 1
        self._python(name, start, self._frame, self._frames[-1] if self._frames else None)

    def enclose(self, name: str, start: float) -> None:
        """A Python function that called all others until now."""
        self._frame += 1
        for event in self.events:
            if event["cat"] == "python_function" and event["args"]["Python parent id"] is None:
                event["args"]["Python parent id"] = self._frame
        self._python(name, start, self._frame, None)

    def _python(self, name: str, start: float, own: int, parent: int | None) -> None:
        ids = {"Python id": own, "Python parent id": parent}
        self.add("python_function", name, start, self.now, self.thread, **ids)

    @contextmanager
    def range(self, name: str, cat: str = "user_annotation", **given: Any) -> Iterator[None]:
        start = self.now
        yield
        self.add(cat, name, start, self.now, self.thread, **given)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """The thread of the autograd engine, in one node."""
        start, self.thread = self.now, AUTOGRAD
        yield
        node = "autograd::engine::evaluate_function: MmBackward0"
        self.add("cpu_op", node, start - 0.2, self.now + 0.2, AUTOGRAD)
        self.thread = MAIN
        self.now += 0.5

    # -- what the host launches

    def next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def run(self, name: str, lasts: float, *, op: str | None = "aten::mm", host: float = 4.0, **how: Any) -> None:
        """An op of ``host`` µs that launches a kernel (or copy); its stream begins it when it is free.

        ``device`` and ``stream`` say where; ``after`` are streams of the device that it waits for; the host waits for
        a ``blocking`` one. ``given`` are the op's arguments, ``api`` the call, the others the kernel's arguments.
        """
        device, stream = how.pop("device", 0), how.pop("stream", COMPUTE)
        waits = [self.free.get((device, other), 0.0) for other in (stream, *how.pop("after", ()))]
        start, self.now = self.now, self.now + host
        begin = max(start + 3, *waits)
        end = self.free[device, stream] = begin + lasts
        if how.pop("blocking", False):
            self.now = max(self.now, end + 2)
        given = how.pop("given", {})
        if op is not None:
            self.add("cpu_op", op, start, self.now, self.thread, **given)
        correlation = self.next_correlation()
        api = how.pop("api", "cudaLaunchKernel")
        self.add("cuda_runtime", api, start + 0.5, self.now - 0.5, self.thread, correlation=correlation)
        copies = name.startswith("Memcpy")
        work = {"device": device, "stream": stream, "correlation": correlation, **how}
        if not copies:
            work = {"grid": [4096, 1, 1], "block": [256, 1, 1], "blocks per SM": 37.9} | work
            work = {"registers per thread": 32, "est. achieved occupancy %": 80} | work
        self.add("gpu_memcpy" if copies else "kernel", name, begin, end, tid=stream, pid=device, **work)

    def copy(self, way: str, lasts: float, size: int, *, memory: str = "Pinned", **how: Any) -> None:
        """A copy ``HtoD`` or ``DtoH``; from and to pageable memory the host waits."""
        names = {"HtoD": f"Memcpy HtoD ({memory} -> Device)", "DtoH": f"Memcpy DtoH (Device -> {memory})"}
        defaults: dict[str, Any] = {"op": "aten::to", "api": "cudaMemcpyAsync", "blocking": memory == "Pageable"}
        self.run(names[way], lasts, bytes=size, **defaults | how)

    def wait(self, name: str = "cudaStreamSynchronize", *, device: int = 0) -> None:
        """The host waits until a device has done all that was launched."""
        start = self.now
        self.now = max([self.now, *(end for (on, _), end in self.free.items() if on == device)]) + 2
        self.add("cuda_runtime", name, start, self.now, self.thread)

    def read(self, *, device: int = 0) -> None:
        """``loss.item()``: a copy of four bytes, and the wait for it."""
        with self.range("aten::item", "cpu_op"), self.range("aten::_local_scalar_dense", "cpu_op"):
            self.copy("DtoH", 1.5, 4, memory="Pageable", op=None, device=device, blocking=False)
            self.wait(device=device)

    def all_reduce(self, lasts: float, *, elements: int, device: int = 0, dtype: str = "BFloat16") -> None:
        """A collective on its own stream, after the compute that was launched before it."""
        args = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements}
        args |= {"Group size": self.world_size, "dtype": dtype}
        with self.range("c10d::allreduce_", "cpu_op"), self.range("record_param_comms", "cpu_op", **args):
            where = {"device": device, "stream": COMMUNICATION, "after": (COMPUTE,)}
            small = {"grid": [24, 1, 1], "block": [544, 1, 1], "blocks per SM": 0.2}
            self.run(ALL_REDUCE, lasts, op=None, host=8, api="cudaLaunchKernelExC", **where, **small, **args)

    def join(self, *, device: int = 0, stream: int = COMMUNICATION) -> None:
        """The compute stream waits for another one."""
        self.call("cudaStreamWaitEvent", 1)
        later = max(self.free.get((device, COMPUTE), 0.0), self.free.get((device, stream), 0.0))
        self.free[device, COMPUTE] = later

    # -- the loop

    def steps(self, step: Step, *, sync: bool = True, count: int = STEPS) -> Timeline:
        """Runs steps; with ``sync`` each ends when the devices are done, as after reading the loss."""
        for _ in range(count):
            begin = self.now
            step(self)
            if sync:
                self.now = max([self.now, *self.free.values()])
            self.add("user_annotation", f"ProfilerStep#{self.number}", begin, self.now)
            self.number += 1
            self.now += 1
        return self

    def write(self) -> Path:
        """Writes the trace and returns its file."""
        name = self.names[0] if self.names else ""
        sms, major, minor = next((facts for word, facts in CHIPS.items() if word in name), (108, 8, 0))
        facts = {"numSms": sms, "computeMajor": major, "computeMinor": minor}
        text: dict[str, Any] = {"schemaVersion": 1, "record_shapes": 1, "with_stack": int(self.has_frames)}
        text["deviceProperties"] = [{"id": i, "name": name} | facts for i, name in enumerate(self.names)]
        if self.world_size > 1:
            text["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": self.world_size}
        self.file.write_text(json.dumps(text | {"traceEvents": self.events}))
        return self.file

    def diagnosed(self, step: Step, *, sync: bool = True) -> Diagnosis:
        """The diagnosis of five equal steps."""
        return diagnose(self.steps(step, sync=sync).write())


def shaped(*dims: Sequence[int], dtype: str = BF16) -> Mapping[str, Any]:
    """The arguments of an op on tensors of these shapes."""
    return {"Input Dims": [list(one) for one in dims], "Input type": [dtype] * len(dims)}
