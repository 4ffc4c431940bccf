"""Traces written after the ledger stood, of programs that run about as fast as their machine can."""

from __future__ import annotations

from trace_chips import A100, BF16, FP16, FP32, H100, L4, MI300X, RTX, V100
from trace_machine import Machine
from trace_programs import Images, Transformer
from trace_timeline import Timeline

COPY = 28


def compiled_transformer_on_h100(line: Timeline) -> None:
    """The host is ahead; the loss is read in every fourth step."""
    m = Machine(line, H100)
    m.python = 2
    model = Transformer(m, layers=6, width=4096, batch=4, length=2048)
    for number in range(8):
        with m.step():
            m.to_device(4 * 2048 * 8, stream=COPY, dims=[4, 2048], dtype="long int")
            m.join(COPY)
            model.train()
            if number % 4 == 3:
                m.item()
    m.finish()


def half_precision_on_v100(line: Timeline) -> None:
    """A large eager model: its elementwise ops are a small part; the loss is read after each step."""
    m = Machine(line, V100, seed=2)
    model = Transformer(m, layers=4, width=5120, batch=2, length=1024, dtype=FP16, compiled=False)
    for _ in range(6):
        with m.step():
            model.train()
            m.item()
    m.finish()


def tokens_decoded_by_a_graph(line: Timeline) -> None:
    """Inference: a CUDA graph per token, whose products read each weight once, and a read of the token."""
    m = Machine(line, H100, seed=3)
    for _ in range(24):
        with m.step():
            line.now += 60
            start = line.now
            line.now += 38
            correlation = line.next_correlation()
            line.add("cuda_runtime", "cudaGraphLaunch", start, line.now, line.thread, correlation=correlation)
            begin = start + 14
            for _ in range(32):
                for k, n in ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)):
                    lasts = m.vary(1.4 + k * n * 2 / (m.chip.bandwidth * 1e3))
                    args = {"device": 0, "context": 1, "stream": 7, "correlation": correlation, "graph node id": k + n}
                    line.add(
                        "kernel",
                        f"void gemv2T_kernel_val<int, int, {BF16}>",
                        begin,
                        begin + lasts,
                        7,
                        0,
                        **args,
                        **m.shape(n / 4, 128, 40),
                    )
                    begin += lasts + 0.9
            line.free[0, 7] = begin
            m.stream("aten::argmax", "reduce", 128_256, [1, 128_256], passes=1)
            m.item()
    m.finish()


def stencils_of_a_solver(line: Timeline) -> None:
    """Compiled elementwise kernels over fields that no cache holds, at the limit of an L4's memory."""
    m = Machine(line, L4, seed=4)
    m.python = 2
    cells = 384**3
    for _ in range(10):
        with m.step():
            for name, passes in (
                ("advect", 5),
                ("mul_sub_div", 4),
                ("add_mul_where", 4),
                ("clamp_sub", 3),
                ("roll_add", 3),
            ):
                m.stream(
                    f"triton_poi_fused_{name}_0",
                    "triton",
                    cells,
                    [384, 384, 384],
                    passes=passes,
                    of=f"{name}_0",
                    dtype=FP32,
                    api="cuLaunchKernel",
                )
            with m.op("aten::sum", [384, 384, 384], dtype=FP32):
                m.launch(
                    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
                    4 + cells * 4 / (m.chip.bandwidth * 1e3 * 0.92),
                    **m.shape(464, 512, 48),
                )
    m.finish()


def batches_copied_under_the_step(line: Timeline) -> None:
    """Workers load, a copy stream fetches the next batch from pinned memory while the device computes."""
    m = Machine(line, A100, seed=5)
    m.python = 3
    model = Images(m, batch=512)
    for _ in range(8):
        with m.step():
            with line.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                line.now += m.vary(420)
            m.to_device(512 * 3 * 224 * 224 * 2, stream=COPY, dims=[512, 3, 224, 224], dtype=FP16)
            model.train()
            m.join(COPY)
            m.item()
    m.finish()


def buckets_reduced_under_the_backward(line: Timeline) -> None:
    """DDP on eight H100: a bucket after each layer, of which only the last is not covered."""
    m = Machine(line, H100, ranks=8, seed=6)
    m.python = 2
    model = Transformer(m, layers=8, width=3072, batch=4, length=2048)

    for _ in range(6):
        with m.step():
            line.now += 200
            model.forward()
            model.backward(bucket=lambda: m.all_reduce(12 * 3072**2, dtype="BFloat16"))
            m.join(20)
            model.update()
    m.finish()


def modules_loaded_in_the_first_step(line: Timeline) -> None:
    """One gap of 70 ms in a second: a module of the library is loaded at its first use."""
    m = Machine(line, A100, seed=7)
    m.python = 2
    model = Transformer(m, layers=4, width=3072, batch=4, length=2048)
    for number in range(9):
        with m.step():
            model.forward()
            if number == 0:
                m.wait("cudaStreamSynchronize")
                with m.op("aten::mm", [8192, 3072], [3072, 32_768]):
                    line.call("cuLibraryLoadData", 70_400, correlation=line.next_correlation())
                    m.launch(m.gemm(BF16, (128, 256)), 6_320, **m.shape(8192, 256, 8, 168))
            model.backward()
            model.update()
    m.finish()


def checkpoint_after_the_steps(line: Timeline) -> None:
    """The recorded steps are over when a checkpoint is written; the profiler is stopped after it."""
    m = Machine(line, RTX, seed=8)
    m.python = 2
    model = Transformer(m, layers=6, width=2048, batch=4, length=2048)
    with line.frame("fit", 88):
        for _ in range(7):
            with m.step(), line.frame("train_step", 52):
                model.train()
                m.item()
        with line.frame("save", 113, "checkpoint.py"), line.frame("save", 943, "torch/serialization.py"):
            for _ in range(12):
                m.to_host(model.parameters // 3)
                line.spend(95_000)
    m.finish()


def images_classified_on_l4(line: Timeline) -> None:
    """Inference of a vision transformer: batches of 256, the answers read after each; no backward."""
    m = Machine(line, L4, seed=9)
    m.python = 2
    model = Transformer(m, layers=8, width=1024, batch=256, length=256, vocabulary=1024, dtype=FP16)
    for _ in range(5):
        with m.step():
            with line.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                line.now += m.vary(300)
            m.to_device(256 * 3 * 224 * 224 * 2, stream=COPY, dims=[256, 3, 224, 224], dtype=FP16)
            m.join(COPY)
            model.forward()
            m.to_host(256 * 8)
    m.finish()


def large_model_on_mi300x(line: Timeline) -> None:
    """Reaches half of the data sheet's arithmetic, as large products do on this device."""
    m = Machine(line, MI300X, seed=10)
    m.python = 3
    model = Transformer(m, layers=4, width=8192, batch=2, length=4096)
    for _ in range(5):
        with m.step():
            model.train()
            m.item()
    m.finish()
