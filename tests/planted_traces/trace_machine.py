"""What programs do on real devices: kernels as long as work, memory and the class of kernel make them, and a host that
needs time for each op; all on a `Timeline`. The traces of the judging half are written with it.

A kernel lasts max(FLOPs / arithmetic, bytes / bandwidth) at the rates that its class reaches, and some µs to begin
and end; products lose what their tiles leave of the last wave. Durations vary by 2%, from a fixed seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import Any

from trace_chips import A100, BF16, BYTES, FP16, FP32, FP64, H100, MI300X, TF32, V100, Chip
from trace_timeline import AUTOGRAD, HOST, MAIN, Timeline

#: Launches that a stream holds before the next one blocks the host.
QUEUE = 1022
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
#: Name, threads of a block, warps that fit of 64, threads per element, share of the bandwidth that streams reach.
CLASSES: dict[str, tuple[str, int, int, float, float]] = {
    "elementwise": ("void at::native::vectorized_elementwise_kernel<4, {}>", 128, 64, 0.25, 0.97),
    "strided": ("void at::native::elementwise_kernel<128, 4, {}>", 128, 48, 0.25, 0.80),
    "copy": ("void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>", 128, 48, 0.25, 0.85),
    "reduce": ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{}>>", 512, 48, 0.06, 0.88),
    "softmax": ("void (anonymous namespace)::softmax_warp_forward<{}>", 128, 40, 0.1, 0.90),
    "norm": ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{}>", 128, 48, 0.06, 0.86),
    "batch_norm": ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<{}>", 512, 32, 0.06, 0.78),
    "gather": ("void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>", 256, 48, 0.12, 0.70),
    "triton": ("triton_poi_fused_{}", 128, 48, 0.25, 0.95),
    "triton_norm": ("triton_red_fused_{}", 256, 32, 0.06, 0.90),
    "optimizer": ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{}>", 512, 32, 0.01, 0.90),
    "gemv": ("void gemv2T_kernel_val<int, int, {}>", 128, 40, 0.02, 0.88),
}


class Machine:
    """A host with one kind of device, which runs a program on a `Timeline`."""

    def __init__(self, line: Timeline, chip: Chip, *, devices: int = 1, ranks: int = 1, seed: int = 1) -> None:
        self.line, self.chip, self.ranks = line, chip, ranks
        line.names = [chip.name] * devices
        line.world_size = ranks
        self.is_rocm = chip is MI300X
        self.compute = 0 if self.is_rocm else 7
        self.device = 0
        self.node: str | None = None
        self.python = 9.0
        self._random = random.Random(seed)
        self._span: list[float] = []
        self._queues: dict[tuple[int, int], deque[float]] = {}

    def vary(self, lasts: float) -> float:
        return lasts * self._random.uniform(0.98, 1.02)

    # -- launching

    def launch(
        self, name: str, lasts: float, *, api: str = "cudaLaunchKernel", stream: int | None = None, **how: Any
    ) -> float:
        """A launch and what it runs, inside the op that is open; returns when it ends.

        ``after`` are further streams that it waits for, ``device`` is where it runs, the others are its arguments.
        """
        line, stream = self.line, self.compute if stream is None else stream
        device, after = how.pop("device", self.device), how.pop("after", ())
        if self.is_rocm:
            api = {"cudaLaunchKernel": "hipLaunchKernel", "cudaLaunchKernelExC": "hipExtLaunchKernel"}.get(api, api)
        start, correlation = line.now, line.next_correlation()
        queue = self._queues.setdefault((device, stream), deque(maxlen=QUEUE))
        full_until = queue[0] if len(queue) == QUEUE else 0.0
        line.now = max(start + self.vary(4.8), full_until)
        cat = "cuda_driver" if api.startswith("cuL") else "cuda_runtime"
        line.add(cat, api, start, line.now, line.thread, correlation=correlation)
        free = max(line.free.get((device, one), 0.0) + 1.1 for one in (stream, *after))
        begin = max(start + self.vary(10.8 if self.is_rocm else 6.2), free)
        end = line.free[device, stream] = begin + self.vary(lasts)
        queue.append(begin)
        self._span += [begin, end]
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
        work: dict[str, Any] = {"device": device, "context": 1, "stream": stream, "correlation": correlation}
        if self.is_rocm:
            how = {key: how[key] for key in ("bytes", "grid", "block") if key in how}
        line.add(cat, name, begin, end, tid=stream, pid=device, **work | how)
        return end

    def shape(self, blocks: float, threads: int, warps: int, registers: int = 32) -> dict[str, Any]:
        """The arguments of a kernel with a grid; ``warps`` is the most that fit on a multiprocessor."""
        blocks, per_sm = max(1, ceil(blocks)), max(1, ceil(blocks)) / self.chip.sms
        full = min(warps, per_sm * threads / 32)
        grid = {"grid": [blocks, 1, 1], "block": [threads, 1, 1], "registers per thread": registers}
        filled = {"blocks per SM": round(per_sm, 6), "warps per SM": round(per_sm * threads / 32, 6)}
        return grid | filled | {"est. achieved occupancy %": round(100 * full / 64)}

    @contextmanager
    def op(
        self,
        name: str,
        *dims: Sequence[int],
        dtype: str = BF16,
        before: float = 7.0,
        python: float | None = None,
        **given: Any,
    ) -> Iterator[None]:
        """An op of the host: Python and the module's call around it, dispatch before what it launches; in the backward
        its node of the graph, on the thread of the autograd engine."""
        line = self.line
        if self.node is None:
            line.now += self.vary(self.python if python is None else python)
        start = line.now
        line.now += self.vary(before)
        yield
        line.now += self.vary(1.5)
        if dims:
            given |= {"Input Dims": [list(one) for one in dims], "Input type": [dtype] * len(dims)}
        line.add("cpu_op", name, start, line.now, line.thread, **given)
        if self.node is not None:
            words = name.removeprefix("aten::").removesuffix("Backward").replace("_backward", "").split("_")
            stem = "".join(word[:1].upper() + word[1:] for word in words)
            line.add("cpu_op", f"{stem}Backward0", start - 1.5, line.now + 0.7, line.thread)
            node = f"autograd::engine::evaluate_function: {stem}Backward0"
            line.add("cpu_op", node, start - 2.5, line.now + 1.2, line.thread)
            line.now += self.vary(4)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """`loss.backward()`: the main thread waits while the engine's thread launches."""
        line = self.line
        with ExitStack() as frames:
            if line.has_frames:
                frames.enter_context(line.frame("backward", 570, "torch/_tensor.py"))
                frames.enter_context(line.frame("_engine_run_backward", 807, "torch/autograd/graph.py"))
            start = line.now
            line.now += 35
            line.thread, self.node = AUTOGRAD, "backward"
            line.now += 20
            yield
            line.thread, self.node = MAIN, None
            line.now += 15
            self.builtin("method run_backward of torch._C._EngineBase object at 0x7f31d2c0", start)

    def builtin(self, name: str, start: float) -> None:
        """A call of a function written in C that ends now, where Python is recorded."""
        if self.line.has_frames:
            self.line.python(f"<built-in {name}>", start)

    # -- kernels

    def stream(
        self, op: str, kind: str, size: int, *dims: Sequence[int], passes: float = 2, of: str = "", **how: Any
    ) -> float:
        """An op whose kernel reads and writes ``passes`` tensors of ``size`` elements.

        All but the result are inputs; a compiled kernel has the result among its arguments.
        """
        dtype = {TF32: FP32}.get(given := how.pop("dtype", BF16), given)
        name, threads, warps, each, share = CLASSES[kind]
        lasts = 2.1 + passes * size * BYTES[dtype] / (self.chip.bandwidth * 1e3 * share)
        shapes = list(dims or [[size]])
        if len(shapes) == 1 and kind in ("elementwise", "softmax", "triton", "triton_norm"):
            shapes *= max(1, int(passes) - (not kind.startswith("triton")))
        with self.op(op, *shapes, dtype=dtype):
            grid = self.shape(size * each / threads, threads, warps)
            return self.launch(name.format(of or dtype), how.pop("lasts", lasts), **grid | how)

    def product(
        self,
        m: int,
        n: int,
        k: int,
        *,
        dtype: str = BF16,
        op: str = "aten::mm",
        batch: int = 1,
        share: float = 1.0,
        **how: Any,
    ) -> float:
        """A product of matrices, at a ``share`` of the arithmetic that large ones reach."""
        kind = FP32 if dtype == TF32 else dtype
        tile = (128, 128) if m >= 128 and n >= 128 else (64, 64)
        if m * n * batch > 128 * 256 * self.chip.sms * 2:
            tile = (128, 256)
        tiles = ceil(m / tile[0]) * ceil(n / tile[1]) * batch
        wave = tiles / (ceil(tiles / self.chip.sms) * self.chip.sms)
        rate = self.chip.products[dtype] * share * wave * k / (k + 96)
        moved = batch * (m * k + k * n + m * n) * BYTES[kind]
        lasts = 2.6 + max(2 * batch * m * n * k / (rate * 1e6), moved / (self.chip.bandwidth * 1e3 * 0.9))
        dims = ([batch, m, k], [batch, k, n]) if batch > 1 else ([m, k], [k, n])
        name = how.pop("name", None) or self.gemm(dtype, tile)
        with self.op(op, *(([n], *dims) if op == "aten::addmm" else dims), dtype=kind, before=11):
            return self.launch(name, lasts, **self.shape(tiles, 256, 8 if dtype != FP32 else 16, 168) | how)

    def gemm(self, dtype: str, tile: tuple[int, int]) -> str:
        """The name of a library's kernel for products."""
        m, n = tile
        short = {BF16: "bf16", FP16: "f16", TF32: "tf32f32", FP32: "f32", FP64: "f64"}[dtype]
        if self.is_rocm:
            letter = {BF16: "BB", FP16: "HH", FP32: "S", FP64: "D"}[dtype]
            return f"Cijk_Alik_Bljk_{letter}S_BH_Bias_HA_S_SAV_UserArgs_MT{m}x{n}x64_MI16x16x1_SN_LDSB1_AFC1"
        if dtype in (FP32, FP64):
            kind = "dgemm" if dtype == FP64 else "sgemm"
            return f"volta_{kind}_128x64_nn" if self.chip is V100 else f"ampere_{kind}_128x64_nn"
        if self.chip is H100:
            return f"nvjet_{'tst' if dtype != TF32 else 'sst'}_{m}x{n}_64x4_2x1_v_bz_coopA_TNT"
        if self.chip is V100:
            return f"volta_fp16_s884gemm_fp16_{m}x{n}_ldg8_f2f_nn"
        if dtype == TF32:
            return f"sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize{m}x{n}x16_stage4_warpsize2x2x1_tensor16x8x8_kernel"
        return f"ampere_{short}_s16816gemm_{short}_{m}x{n}_ldg8_f2f_stages_64x3_nn"

    def attention(
        self, batch: int, heads: int, length: int, size: int, *, backward: bool = False, dtype: str = BF16
    ) -> float:
        """One fused kernel for causal attention, which skips half of the scores."""
        flops = 2 * batch * heads * length * length * size * (2.5 if backward else 1)
        share = {H100.name: 0.35, A100.name: 0.54}.get(self.chip.name, 0.5) * (0.8 if backward else 1)
        fused, name = "flash", f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{size}, 128, 64, 4>>"
        if dtype in (FP32, TF32):
            fused, name = "efficient", f"fmha_cutlass{'B' if backward else 'F'}_f32_aligned_64x64_rf_sm80"
            share *= 0.7
        elif backward:
            name = name.replace("fwd", "bwd").replace("bwd_kernel", "bwd_dq_dk_dv_loop_seqk_parallel_kernel", 1)
        each: list[Sequence[int]] = [[batch, heads, length, size]] * (5 if backward else 3)
        if backward:
            each.append([batch, heads, length])
        op = f"aten::_scaled_dot_product_{fused}_attention" + "_backward" * backward
        causal = ["", "", "", "0.", "True", "False", ""]
        concrete = {} if backward else {"Concrete Inputs": causal}
        with self.op(op, *each, dtype=FP32 if dtype == TF32 else dtype, before=24, **concrete):
            grid = self.shape(batch * heads * ceil(length / 128), 128, 8, 255)
            return self.launch(name, 4 + flops / (self.chip.products[dtype] * share * 1e6), **grid)

    def convolution(
        self, batch: int, width: int, size: int, *, dtype: str = FP16, backward: bool = False, convert: float = 0.0
    ) -> None:
        """A convolution of 3 by 3 over images of ``size`` by ``size``; its backward runs two kernels.

        The kernels read NHWC; with ``convert`` inputs and output are copied to it and back at this share of the
        bandwidth.
        """
        kind = FP32 if dtype == TF32 else dtype
        flops, numbers = 2 * batch * width * width * 9 * size * size, batch * width * size * size
        image, weight = [batch, width, size, size], [width, width, 3, 3]
        op = "aten::convolution_backward" if backward else "aten::cudnn_convolution"
        with self.op(op, *([image] * (1 + backward)), weight, dtype=kind, before=28):
            for way in ("dgrad", "wgrad") if backward else ("fprop",):
                moved = BYTES[kind] * (2 * numbers + 9 * width * width) / (self.chip.bandwidth * 1e3 * 0.85)
                share = 0.72 if way == "fprop" else 0.62
                lasts = 4 + max(flops / (self.chip.products[dtype] * share * 1e6), moved)
                if convert:
                    self._convert("nchwToNhwc", numbers, convert)
                    self._convert("nchwToNhwc", 9 * width * width, convert)
                grid = self.shape(ceil(batch * size * size / 128) * ceil(width / 128), 128, 8, 200)
                self.launch(self.convolving(way, dtype), lasts, **grid)
                if convert:
                    self._convert("nhwcToNchw", numbers, convert)

    def convolving(self, way: str, dtype: str, tile: str = "128x128x32_stage4") -> str:
        """The name of a library's kernel for convolutions."""
        if self.chip is V100:
            return f"xmma_{way}_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage2"
        numbers = "indexed_tf32f32_tf32f32" if dtype == TF32 else "f16f16_f16f32"
        return f"sm80_xmma_{way}_implicit_gemm_{numbers}_f32_nhwckrsc_nhwc_tilesize{tile}"

    def _convert(self, way: str, numbers: int, share: float) -> None:
        name = f"void cudnn::ops::{way}Kernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>"
        lasts = 3 + 2 * numbers * 2 / (self.chip.bandwidth * 1e3 * share)
        self.launch(name, lasts, **self.shape(numbers / 1024, 256, 48))

    def fused_adamw(self, parameters: int, *, dtype: str = FP32, tensors: int = 40) -> None:
        """`AdamW(fused=True)`: four tensors are read and three written."""
        with self.line.range("Optimizer.step#AdamW.step"):
            self.line.now += self.vary(120)
            lists: Any = [[[parameters // tensors]] * tensors] * 4
            with self.op("aten::_fused_adamw_", *lists, dtype="TensorList"):
                for _ in range(4):
                    lasts = 7 * parameters / 4 * BYTES[dtype] / (self.chip.bandwidth * 1e3 * 0.9)
                    name = CLASSES["optimizer"][0].format(
                        "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>"
                    )
                    self.launch(name, lasts, **self.shape(320, 512, 32, 44))

    # -- copies and waits

    def to_device(
        self,
        size: int,
        *,
        pinned: bool = True,
        stream: int | None = None,
        dims: Sequence[int] = (),
        dtype: str = "float",
    ) -> float:
        """``tensor.to(device)``: from pageable memory it is staged at some 6 GB/s, and the host waits."""
        memory, rate = ("Pinned", self.chip.bus) if pinned else ("Pageable", min(6.0, self.chip.bus / 2))
        with (
            self.op("aten::to", dims or [size], dtype=dtype),
            self.op("aten::copy_", dims or [size], dtype=dtype, python=1),
        ):
            start = self.line.now
            name = f"Memcpy HtoD ({memory} -> Device)" if not self.is_rocm else "Memcpy HtoD (Host -> Device)"
            api = ("hipMemcpyAsync" if pinned else "hipMemcpyWithStream") if self.is_rocm else "cudaMemcpyAsync"
            end = self.launch(name, 1.5 + size / (rate * 1e3), api=api, stream=stream, bytes=size)
            if not pinned:
                self._block(api, start, end)
                self.wait("cudaStreamSynchronize", until=end)
        return end

    def to_host(self, size: int, *, op: str = "aten::copy_", rate: float = 5.0) -> None:
        """A copy into pageable memory and the wait for it, as `.cpu()`, `.item()` and `nonzero` make."""
        line = self.line
        with self.op(op, [size], before=5):
            api = "hipMemcpyWithStream" if self.is_rocm else "cudaMemcpyAsync"
            name = "Memcpy DtoH (Device -> Pageable)" if not self.is_rocm else "Memcpy DtoH (Device -> Host)"
            start = line.now
            end = self.launch(name, 1.6 + size / (rate * 1e3), api=api, bytes=size)
            if size > 65_536 or self.is_rocm:
                self._block(api, start, end)
            if not self.is_rocm:
                self.wait("cudaStreamSynchronize", until=end)

    def _block(self, api: str, start: float, end: float) -> None:
        """The call that was recorded last returns when the device is done."""
        call = next(event for event in reversed(self.line.events) if event["name"] == api)
        self.line.now = max(self.line.now, end + 3)
        call["dur"] = self.line.now - start

    def item(self) -> None:
        """``tensor.item()``."""
        start = self.line.now
        with (
            self.op("aten::item", [], dtype=FP32, before=1.5),
            self.op("aten::_local_scalar_dense", [], dtype=FP32, python=0),
        ):
            self.to_host(4)
        self.builtin("method item of Tensor object at 0x7f2a9c1e5b30", start)

    def wait(self, name: str = "cudaDeviceSynchronize", until: float | None = None) -> None:
        """The host waits for its device, or until one time."""
        start, line = self.line.now, self.line
        if self.is_rocm:
            name = name.replace("cuda", "hip")
        ends = [until] if until is not None else list(line.free.values())
        line.now = max([line.now + 2, *(end + 3 for end in ends)])
        line.add("cuda_runtime", name, start, line.now, line.thread, correlation=line.next_correlation())

    # -- communication

    def all_reduce(self, elements: int, *, dtype: str = "Float", rate: float | None = None, late: float = 0.0) -> float:
        """A collective on its own stream after what was launched before it.

        ``rate`` is the algorithm's in GB/s, ``late`` how long it waits for other ranks.
        """
        line, size = self.line, {"Float": 4, "BFloat16": 2}[dtype]
        args = {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "In split size": "[]",
        }
        args |= {"Out split size": "[]", "Group size": self.ranks, "dtype": dtype, "Process Group Name": "0"}
        args |= {"Process Group Description": "default_pg", "Process Group Ranks": str(list(range(self.ranks)))}
        rate = rate or {"NVIDIA H100 80GB HBM3": 230, "NVIDIA A100-SXM4-80GB": 130}.get(self.chip.name, 60)
        short = {"Float": "f32", "BFloat16": "bf16"}[dtype]
        line.now += 6
        with ExitStack() as ranges:
            if self.node is not None:
                node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                ranges.enter_context(line.range(node, "cpu_op"))
                line.now += 5
            ranges.enter_context(line.range("nccl:all_reduce"))
            ranges.enter_context(line.range("c10d::allreduce_", "cpu_op"))
            line.now += 5
            ranges.enter_context(line.range("record_param_comms", "cpu_op", **args))
            line.now += 6
            grid = self.shape(24, 544, 17, 96) | {"est. achieved occupancy %": 0}
            where: dict[str, Any] = {"stream": 20, "after": (self.compute,), "api": "cudaLaunchKernelExC"}
            lasts = 18 + elements * size / (rate * 1e3) + late
            end = self.launch(ALL_REDUCE.format(short), lasts, **where, **grid, **args)
        line.now += 5
        return end

    def join(self, stream: int) -> None:
        """The compute stream waits for another one."""
        self.line.call("cudaStreamWaitEvent", 1.2)
        on = (self.device, self.compute)
        self.line.free[on] = max(self.line.free.get(on, 0.0), self.line.free.get((self.device, stream), 0.0))

    # -- the loop

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of `torch.profiler`: the host's range, and its projection on the device."""
        line, begin = self.line, self.line.now
        self._span.clear()
        yield
        name, line.number = f"ProfilerStep#{line.number}", line.number + 1
        line.add("user_annotation", name, begin, line.now)
        if self._span:
            line.add("gpu_user_annotation", name, min(self._span), max(self._span), tid=self.compute, pid=0)
        line.now += 12

    def finish(self) -> None:
        """The profiler stops: it waits for the device; its own events of the whole window."""
        line = self.line
        self.wait()
        if line.has_frames:
            for function, at in (("main", 131), ("<module>", 1)):
                line.enclose(f"train.py({at}): {function}", 905.0)
        whole = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
        line.events.append(whole | {"ts": 900.0, "dur": line.now - 900, "args": {"Op count": 0}})
        names = [(HOST, "CPU"), *((i, f"GPU {i}") for i in range(len(line.names)))]
        line.events += [
            {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": 900.0, "args": {"labels": label}}
            for pid, label in names
        ]
        line.events.append(
            {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": line.now + 40}
        )
