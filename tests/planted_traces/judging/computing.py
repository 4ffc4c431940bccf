"""Traces written after the ledger stood, of programs whose device computes more than it needs to, or slower."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from trace_chips import A100, BF16, FP16, FP32, FP64, H100, L4, MI300X, RTX, TF32, V100
from trace_machine import Machine
from trace_programs import Images, Transformer
from trace_timeline import Timeline

# -- written out


def attention_by_hand(line: Timeline) -> None:
    """Scores of 16 heads and 2,048 tokens pass through memory five times forward and four times backward."""
    m = Machine(line, A100, seed=41)
    model = Transformer(m, layers=4, width=1024, batch=8, length=2048, compiled=False)
    heads, length, scores = 8 * 16, 2048, 8 * 16 * 2048 * 2048

    def attend(*, backward: bool = False) -> None:
        each = partial(m.stream, dtype=BF16)
        shape = [8, 16, length, length]
        with nullcontext() if backward else line.frame("attend", 71, "model.py"):
            m.product(length, length, 64, op="aten::bmm", batch=heads)
            if backward:
                m.product(length, 64, length, op="aten::bmm", batch=heads)
                each("aten::native_dropout_backward", "elementwise", scores, shape, passes=2.5)
                each("aten::_softmax_backward_data", "softmax", scores, shape, passes=3)
                each("aten::masked_fill", "elementwise", scores, shape, passes=2.5)
                each("aten::div", "elementwise", scores, shape)
                m.product(length, 64, length, op="aten::bmm", batch=heads)
            else:
                each("aten::div", "elementwise", scores, shape)
                each("aten::masked_fill", "elementwise", scores, shape, passes=2.5)
                each("aten::_softmax", "softmax", scores, shape)
                each("aten::native_dropout", "elementwise", scores, shape, passes=2.5)
            m.product(length, 64, length, op="aten::bmm", batch=heads)

    for _ in range(5):
        with m.step():
            model.forward(attend)
            model.backward(lambda: attend(backward=True))
            model.update()
    m.finish()


def norms_and_gates_written_out(line: Timeline) -> None:
    """An eager model with RMSNorm, rotary embedding and SwiGLU in single ops, in float32 between the products."""
    m = Machine(line, MI300X, seed=42)
    model = Transformer(m, layers=5, width=2048, batch=8, length=2048, compiled=False)
    numbers, wide = model.tokens * 2048, model.tokens * 5632
    norm = (
        ("aten::_to_copy", 3),
        ("aten::pow", 2),
        ("aten::mean", 1),
        ("aten::mul", 2),
        ("aten::_to_copy", 3),
        ("aten::mul", 2),
    )
    rotary = (("aten::neg", 2), ("aten::cat", 2), ("aten::mul", 2), ("aten::mul", 2), ("aten::add", 3))
    gate = (("aten::sigmoid", 2), ("aten::mul", 3), ("aten::mul", 3))

    def elementwise(ops: tuple[tuple[str, float], ...], size: int) -> None:
        for op, passes in ops:
            kind = "reduce" if op == "aten::mean" else "elementwise"
            part = size // 2 if op == "aten::neg" else size
            dtype = BF16 if op == "aten::_to_copy" else FP32
            m.stream(op, kind, part, [8, 2048, part // model.tokens], passes=passes, dtype=dtype)

    def block(*, backward: bool = False) -> None:
        times = 2 if backward else 1
        with nullcontext() if backward else line.frame("forward", 104, "llama.py"):
            for _ in range(times):
                elementwise(norm, numbers)
                m.product(model.tokens, 6144, 2048)
                elementwise(rotary * 2, numbers)
                m.product(model.tokens, 2048, 2048)
                elementwise(norm, numbers)
                m.product(model.tokens, 11_264, 2048)
                elementwise(gate, wide)
                m.product(model.tokens, 2048, 5632)
            model.attend(backward=backward)

    for _ in range(4):
        with m.step():
            for _ in range(model.layers):
                block()
            with m.backward():
                for _ in range(model.layers):
                    block(backward=True)
            model.update()
            m.item()
    m.finish()


def adam_of_single_tensors(line: Timeline) -> None:
    """`AdamW(foreach=False)`: 330 parameters of a small model, thirteen ops for each."""
    m = Machine(line, V100, seed=43)
    model = Transformer(m, layers=8, width=1024, batch=8, length=512, dtype=FP16, vocabulary=16_384)
    m.python = 4
    ops = ("add_", "mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")
    for _ in range(4):
        with m.step(), line.frame("train_step", 41):
            model.forward()
            model.backward()
            with (
                line.range("Optimizer.step#AdamW.step"),
                line.frame("_single_tensor_adamw", 319, "torch/optim/adamw.py"),
            ):
                for i in range(330):
                    size = 1024 * 1024 if i % 3 == 0 else 1024
                    line.spend(m.vary(16))
                    for op in ops:
                        m.stream(f"aten::{op}", "elementwise", size, [size], dtype=FP32)
    m.finish()


def gradients_filled_with_zeros(line: Timeline) -> None:
    """`zero_grad(set_to_none=False)`, 1.5 billion parameters, a small batch: gradients are filled, then added to."""
    m = Machine(line, A100, seed=44)
    m.python = 3
    model = Transformer(m, layers=12, width=3072, batch=1, length=1024, compiled=True)
    each = model.parameters // 48

    def accumulate() -> None:
        for _ in range(4):
            m.stream("aten::add_", "elementwise", each, [each], passes=3, dtype=FP32)

    for _ in range(5):
        with m.step(), line.frame("train_step", 41):
            with (
                line.range("Optimizer.zero_grad#AdamW.zero_grad"),
                line.frame("zero_grad", 997, "torch/optim/optimizer.py"),
            ):
                for _ in range(48):
                    with m.op("aten::zero_", [each], dtype=FP32), m.op("aten::fill_", [each], dtype=FP32, python=1):
                        m.launch(
                            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
                            2 + each * 4 / (m.chip.bandwidth * 1e3),
                            **m.shape(each / 512, 128, 64, 16),
                        )
            model.forward()
            model.backward(bucket=accumulate)
            model.update()
    m.finish()


# -- precision


def float32_products_on_a100(line: Timeline) -> None:
    """Nobody allowed TF32: products run without tensor cores."""
    m = Machine(line, A100, seed=45)
    model = Transformer(m, layers=4, width=2048, batch=4, length=1024, dtype=FP32, compiled=False)
    for _ in range(4):
        with m.step():
            model.train()
            m.item()
    m.finish()


def tf32_products_on_h100(line: Timeline) -> None:
    """TF32 is allowed and nothing runs in half precision."""
    m = Machine(line, H100, seed=46)
    model = Transformer(m, layers=6, width=3072, batch=4, length=1024, dtype=TF32, compiled=True)
    for _ in range(5):
        with m.step():
            model.train()
    m.finish()


def float32_convolutions_on_4090(line: Timeline) -> None:
    """A network without autocast: TF32 convolutions, which is torch's default for them."""
    m = Machine(line, RTX, seed=47)
    model = Images(m, batch=128, dtype=TF32)

    for _ in range(5):
        with m.step():
            model.train()
    m.finish()


def doubles_from_numpy(line: Timeline) -> None:
    """A regression whose data came from numpy in float64, on a device with few units for it."""
    m = Machine(line, RTX, seed=48)
    for _ in range(5):
        with m.step(), line.frame("fit_step", 29, "fit.py"):
            for width in (512, 1024, 1024):
                m.product(2048, 1024, width, dtype=FP64, op="aten::addmm")
                m.stream("aten::tanh", "elementwise", 2048 * 1024, [2048, 1024], dtype=FP64, of="double")
            with m.backward():
                for width in (1024, 1024, 512):
                    m.stream("aten::tanh_backward", "elementwise", 2048 * 1024, [2048, 1024], dtype=FP64, passes=3)
                    m.product(2048, width, 1024, dtype=FP64)
                    m.product(1024, width, 2048, dtype=FP64)
            m.fused_adamw(2_700_000, dtype=FP64, tensors=6)
    m.finish()


# -- shapes and layouts


def inner_size_of_1023(line: Timeline) -> None:
    """Features of 1,023 numbers: rows are not aligned, and the kernel for that reaches a third of the arithmetic."""
    m = Machine(line, A100, seed=49)
    name = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_nn_align1>"
    odd = partial(m.product, dtype=FP16, share=0.33, name=name)
    for _ in range(6):
        with m.step(), line.frame("train_step", 41):
            for _ in range(6):
                odd(32_768, 4096, 1023, op="aten::addmm")
                m.stream("aten::relu", "elementwise", 32_768 * 4096, [32_768, 4096], dtype=FP16)
                odd(32_768, 1023, 4096, op="aten::addmm")
            with m.backward():
                for _ in range(6):
                    odd(32_768, 4096, 1023)
                    odd(1023, 4096, 32_768)
                    m.stream(
                        "aten::threshold_backward", "elementwise", 32_768 * 4096, [32_768, 4096], dtype=FP16, passes=3
                    )
                    odd(32_768, 1023, 4096)
                    odd(4096, 1023, 32_768)
            m.fused_adamw(50_000_000)
    m.finish()


def images_in_nchw(line: Timeline) -> None:
    """Autocast without `channels_last`: cuDNN converts each convolution's inputs and output."""
    m = Machine(line, V100, seed=50)
    model = Images(m, batch=128)

    forward = partial(m.convolution, model.batch, convert=0.62)
    backward = partial(m.convolution, model.batch, convert=0.62, backward=True)
    for _ in range(5):
        with m.step():
            model.forward(forward)
            model.backward(backward)
            model.update()
    m.finish()


def another_size_in_each_step(line: Timeline) -> None:
    """`cudnn.benchmark` and pictures of another size in each step: cuDNN times its algorithms again."""
    m = Machine(line, A100, seed=51)
    for size in (64, 60, 72, 68, 56, 76):
        model = Images(m, batch=32, stages=((128, size), (256, size // 2)), blocks=2)

        def convolution(width: int, size: int) -> None:
            with m.op("aten::cudnn_convolution", [32, width, size, size], [width, width, 3, 3], dtype=FP16):
                flops = 2 * 32 * width * width * 9 * size * size
                for i in range(8):
                    line.call("cudaEventRecord", 2.4)
                    line.spend(m.vary(900))
                    share = (0.6, 0.5, 0.42, 0.33, 0.2, 0.1, 0.06, 0.03)[i]
                    name = m.convolving("fprop", FP16, f"{(256, 128, 64, 32)[i % 4]}x64x32_stage{3 + i % 3}")
                    end = m.launch(
                        name,
                        4 + flops / (m.chip.products[FP16] * share * 1e6),
                        **m.shape(32 * size * size / 128, 128, 8, 200),
                    )
                    line.call("cudaEventRecord", 2.2)
                    m.wait("cudaEventSynchronize", until=end)
                m.launch(
                    m.convolving("fprop", FP16, "256x64x32_stage3"),
                    4 + flops / (m.chip.products[FP16] * 0.6 * 1e6),
                    **m.shape(32 * size * size / 128, 128, 8, 200),
                )

        with m.step(), line.frame("train_step", 41):
            with line.frame("forward", 12, "model.py"):
                model.forward(convolution)
            model.backward()
            model.update()
    m.finish()


# -- kernels that do not fill the device


def scan_of_one_sequence(line: Timeline) -> None:
    """A recurrent scan over one long sequence: a block for each 64 channels, so 24 of 132 multiprocessors work."""
    m = Machine(line, H100, seed=52)
    scan = "void selective_scan_{0}_kernel<Selective_Scan_{0}_kernel_traits<128, 16, true, c10::BFloat16, float>>"
    m.python = 5
    for _ in range(5):
        with m.step(), line.frame("train_step", 41):
            for _ in range(12):
                m.product(4096, 3072, 768, op="aten::mm")
                with m.op("SelectiveScanFn", [1, 1536, 4096]):
                    m.launch(scan.format("fwd"), 2_350, **m.shape(24, 128, 16, 96))
                m.product(4096, 768, 1536, op="aten::mm")
            with m.backward():
                for _ in range(12):
                    m.product(4096, 1536, 768)
                    with m.op("SelectiveScanFnBackward", [1, 1536, 4096]):
                        m.launch(
                            scan.format("bwd"),
                            5_100,
                            **m.shape(24, 128, 16, 128),
                        )
                    m.product(4096, 768, 3072)
            m.fused_adamw(50_000_000)
    m.finish()


def padding_embedded(line: Timeline) -> None:
    """Most indices of an embedding are the same one: the backward of indexing adds its rows one after the other."""
    m = Machine(line, L4, seed=53)
    m.python = 4
    model = Transformer(m, layers=3, width=768, batch=16, length=512, dtype=FP16, vocabulary=8192)
    for _ in range(5):
        with m.step(), line.frame("train_step", 41):
            m.stream("aten::index", "gather", 8192 * 768, [30_000, 768], dtype=FP16)
            model.forward()
            model.backward()
            with m.backward(), m.op("aten::_index_put_impl_", [30_000, 768], [8192], [8192, 768], dtype=FP16):
                for pass_ in ("Histogram", "ExclusiveSum", "Onesweep"):
                    m.launch(f"void at_cuda_detail::cub::DeviceRadixSort{pass_}Kernel<long>", 9, **m.shape(40, 256, 32))
                m.launch(
                    "void at::native::indexing_backward_kernel<c10::Half, 4>", 41_000, **m.shape(2048 * 6, 128, 64)
                )
            model.update()
    m.finish()
