"""Traces that took part in choosing numbers: each function builds the trace of its name."""

from __future__ import annotations

from typing import Any

from trace_timeline import ADD, BF16, COMPUTE, COPY, GEMM_BF16, GEMM_FP32, GEMM_TF32, H100, Timeline, shaped

#: 2 x 4096^3 FLOP take 441 us at 312 TFLOP/s: 79% of an A100's peak.
SQUARE, SQUARE_US = shaped([4096, 4096], [4096, 4096]), 560.0
#: Two tensors of 64 MiB take 66 us at 2,039 GB/s.
FLOATS = shaped([4096, 4096], [4096, 4096], dtype="float")
SMALL = shaped([64, 256], [256, 256])


def products(line: Timeline, count: int, **how: Any) -> None:
    """Products of large matrices, near the limit of arithmetic."""
    for _ in range(count):
        line.run(GEMM_BF16, SQUARE_US, given=SQUARE, **how)


def train(line: Timeline, count: int = 20, **how: Any) -> None:
    """A healthy forward, backward and optimizer."""
    products(line, count // 3, **how)
    with line.backward():
        products(line, count - count // 3, **how)
    with line.range("Optimizer.step#AdamW.step"):
        given = shaped([4096, 4096], [4096, 4096], [4096, 4096], [4096, 4096], dtype="float")
        line.run("multi_tensor_apply_kernel<FusedAdam>", 150, op="aten::_fused_adamw_", given=given, **how)


# -- healthy


def products_at_the_limit(line: Timeline) -> None:
    line.steps(train)


def additions_at_the_limit_of_memory(line: Timeline) -> None:
    line.steps(lambda line: [line.run(ADD, 80, op="aten::add_", given=FLOATS) for _ in range(100)])


def host_ahead_of_the_device(line: Timeline) -> None:
    """The host launches a step in a tenth of the device's time, and never waits."""
    line.steps(train, sync=False, count=12)
    line.wait("cudaDeviceSynchronize")


def data_loaded_while_the_device_works(line: Timeline) -> None:
    def step(line: Timeline) -> None:
        with line.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            line.spend(5_000)
        line.copy("HtoD", 60, 1_500_000, stream=COPY)
        train(line)

    line.steps(step, sync=False, count=10)
    line.wait("cudaDeviceSynchronize")


def all_reduce_under_the_backward(line: Timeline) -> None:
    line.world_size = 8

    def step(line: Timeline) -> None:
        products(line, 8)
        with line.backward():
            for _ in range(4):
                products(line, 4)
                line.all_reduce(900, elements=25_000_000)
        products(line, 2)
        line.join()

    line.steps(step)


def second_device_that_helps(line: Timeline) -> None:
    """Device 1 embeds for a tenth of the step while device 0 computes."""
    line.names *= 2

    def step(line: Timeline) -> None:
        for _ in range(10):
            line.run(ADD, 80, op="aten::embedding", device=1, given=FLOATS)
        train(line)

    line.steps(step)


# -- waiting


def loss_read_after_each_product(line: Timeline) -> None:
    def step(line: Timeline) -> None:
        with line.frame("train_step", 12):
            for _ in range(20):
                line.run(GEMM_BF16, SQUARE_US, given=SQUARE)
                line.read()
                line.spend(300)

    line.steps(step)


def one_token_at_a_time(line: Timeline) -> None:
    """Dozens of gaps: 300 kernels of 3 us, launched every 20 us."""
    line.steps(lambda line: [line.run(GEMM_BF16, 3, op=f"aten::layer_{i}", host=20, given=SMALL) for i in range(300)])


def kernels_loaded_at_first_use(line: Timeline) -> None:
    """One gap of 218 ms in the first step: the runtime loads a module that it had deferred."""

    def step(line: Timeline) -> None:
        train(line, 10)
        if line.number == 0:
            line.wait()
            with line.range("aten::mm", "cpu_op"):
                line.call("cudaFuncGetAttributes", 218_000)
        train(line, 10)

    line.steps(step)


def algorithms_tried_at_first_use(line: Timeline) -> None:
    """One gap of 218 ms in the first step: an op that searches for its fastest algorithm."""

    def step(line: Timeline) -> None:
        train(line, 10)
        if line.number == 0:
            line.wait()
            line.op("aten::cudnn_convolution", 218_000)
        train(line, 10)

    line.steps(step)


def python_between_launches(line: Timeline) -> None:
    """48% idle: a function of the user's between the products takes longer than the products."""

    def step(line: Timeline) -> None:
        with line.frame("train_step", 12):
            for _ in range(10):
                line.run(GEMM_BF16, SQUARE_US, given=SQUARE)
                with line.frame("mix_labels", 31):
                    line.spend(1_080)

    line.steps(step)


def table_built_in_each_step(line: Timeline) -> None:
    """41% idle, in one gap per step: a function of the user's prepares what the next step needs."""

    def step(line: Timeline) -> None:
        with line.frame("train_step", 12):
            train(line, 12)
            with line.frame("mining_table", 24):
                line.spend(12_000)

    line.steps(step)


def batch_waited_for(line: Timeline) -> None:
    def step(line: Timeline) -> None:
        with line.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            line.spend(12_000)
        train(line)

    line.steps(step)


def memory_allocated_in_each_step(line: Timeline) -> None:
    def step(line: Timeline) -> None:
        for _ in range(4):
            products(line, 4)
            line.wait("cudaFree")
            line.call("cudaMalloc", 1_600)

    line.steps(step)


# -- copies


def pageable_batches(line: Timeline) -> None:
    def step(line: Timeline) -> None:
        line.copy("HtoD", 4_000, 16_000_000, memory="Pageable")
        train(line)

    line.steps(step)


def copies_that_block(line: Timeline) -> None:
    def step(line: Timeline) -> None:
        for _ in range(10):
            line.copy("HtoD", 300, 7_000_000, api="cudaMemcpy", blocking=True)
            products(line, 2)

    line.steps(step)


# -- communication


def late_rank_in_the_backward(line: Timeline) -> None:
    """All-reduces of equal size in a step of 258 ms: the first of each step waits 71 ms for another rank."""
    line.world_size = 2

    def step(line: Timeline) -> None:
        products(line, 130)
        with line.backward():
            for i in range(4):
                products(line, 50)
                line.all_reduce(72_000 if i == 0 else 900, elements=25_000_000)
                if i == 0:
                    line.join()
        line.join()

    line.steps(step, count=3)


def all_reduce_for_each_parameter(line: Timeline) -> None:
    line.world_size = 8

    def step(line: Timeline) -> None:
        products(line, 10)
        with line.backward():
            for _ in range(200):
                line.all_reduce(45, elements=20_000)
        line.join()

    line.steps(step)


# -- computing


def attention_written_out(line: Timeline) -> None:
    """Scores in memory on an H100: 6% of its peak."""
    line.names = [H100]
    scores = shaped([8, 16, 2048, 2048])
    keys, values = shaped([8, 16, 2048, 64], [8, 16, 64, 2048]), shaped([8, 16, 2048, 2048], [8, 16, 2048, 64])

    def step(line: Timeline) -> None:
        for layer in range(4):
            with line.frame("attend", 40 + layer):
                line.run(GEMM_BF16, 500, op="aten::matmul", given=keys)
                line.run(ADD, 900, op="aten::div", given=scores)
                line.run(ADD, 900, op="aten::masked_fill", given=scores)
                line.run("softmax_warp_forward", 900, op="aten::softmax", given=scores)
                line.run(GEMM_BF16, 500, op="aten::matmul", given=values)
            products(line, 2)

    line.steps(step)


def activation_written_out(line: Timeline) -> None:
    """A row of elementwise kernels, near the memory's limit."""

    def step(line: Timeline) -> None:
        products(line, 4)
        for i in range(12):
            given = shaped([4096, 4096], [], dtype="float")
            line.run(ADD, 85, op=("aten::mul", "aten::add", "aten::tanh")[i % 3], given=given)

    line.steps(step)


def strided_reads(line: Timeline) -> None:
    """Copies of transposed tensors at 36% of the memory's bandwidth fill the step."""
    copy = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>"
    line.steps(lambda line: [line.run(copy, 183, op="aten::copy_", given=FLOATS) for _ in range(50)])


def float32_products(line: Timeline) -> None:
    given = shaped([4096, 4096], [4096, 4096], dtype="float")
    line.steps(lambda line: [line.run(GEMM_FP32, 8_000, given=given) for _ in range(5)])


def tf32_products(line: Timeline) -> None:
    given = shaped([4096, 4096], [4096, 4096], dtype="float")
    line.steps(lambda line: [line.run(GEMM_TF32, 1_100, given=given) for _ in range(10)])


def float64_products(line: Timeline) -> None:
    given = shaped([2048, 2048], [2048, 2048], dtype="double")
    line.steps(lambda line: [line.run("ampere_dgemm_64x64_nn", 2_000, given=given) for _ in range(5)])


def odd_vocabulary(line: Timeline) -> None:
    given = shaped([8192, 1024], [1024, 50257])
    line.steps(lambda line: [line.run(GEMM_BF16, 8_000, given=given) for _ in range(3)])


def bias_before_batch_norm(line: Timeline) -> None:
    given = {"Input Dims": [[64, 64, 56, 56], [64, 64, 3, 3], [64]], "Input type": [BF16] * 3}

    def step(line: Timeline) -> None:
        for _ in range(12):
            with line.range("aten::conv2d", "cpu_op", **given):
                line.run("sm80_xmma_fprop_implicit_gemm_bf16", 100, op="aten::convolution")
                line.run(ADD, 40, op="aten::add_")
            line.run("cudnn_bn_fwd_tr_1C11_bf16", 30, op="aten::batch_norm")

    line.steps(step)


def layouts_converted(line: Timeline) -> None:
    def step(line: Timeline) -> None:
        for _ in range(20):
            line.run("void cudnn::ops::nchwToNhwcKernel<__half, __half, float>", 60)
            line.run("sm80_xmma_fprop_implicit_gemm_bf16", 100, op="aten::cudnn_convolution")

    line.steps(step)


def grids_below_the_device(line: Timeline) -> None:
    small = {"grid": [16, 1, 1], "blocks per SM": 0.15}
    line.steps(lambda line: [line.run(GEMM_BF16, 100, **small) for _ in range(40)])


def few_warps(line: Timeline) -> None:
    few = {"est. achieved occupancy %": 12}
    line.steps(lambda line: [line.run("triton_red_fused_native_layer_norm_3", 100, **few) for _ in range(40)])


def optimizer_by_parameter(line: Timeline) -> None:
    def step(line: Timeline) -> None:
        products(line, 10)
        line.wait()
        with line.range("Optimizer.step#AdamW.step"):
            for _ in range(500):
                line.run(ADD, 3, op="aten::addcmul_", host=9)

    line.steps(step)


def optimizer_over_lists(line: Timeline) -> None:
    """AdamW over 400 million parameters: eight ops that read and write 20 tensors of 1.6 GB."""
    tensors = [[4096, 4096]] * 24
    ops = {"mul_": 2, "lerp_": 3, "addcmul_": 3, "sqrt": 2, "div_": 2, "add_": 2, "addcdiv_": 4, "mul": 2}

    def step(line: Timeline) -> None:
        products(line, 40)
        with line.range("Optimizer.step#AdamW.step"):
            for op, passes in ops.items():
                given = {"Input Dims": [tensors] * (passes - 1), "Input type": ["TensorList"] * (passes - 1)}
                kernel = f"multi_tensor_apply_kernel<{op}>"
                line.run(kernel, passes * 860, op=f"aten::_foreach_{op}", given=given)

    line.steps(step)


# -- several devices


def second_device_fed_from_pageable_memory(line: Timeline) -> None:
    """Device 1 is less busy: it waits for its batch, and device 0 for the host that waits."""
    line.names *= 2

    def step(line: Timeline) -> None:
        products(line, 12, device=0)
        line.copy("HtoD", 9_000, 40_000_000, memory="Pageable", device=1)
        products(line, 6, device=1)
        line.wait(device=1)

    line.steps(step)


def two_devices_of_tiny_kernels(line: Timeline) -> None:
    line.names *= 2

    def step(line: Timeline) -> None:
        for i in range(200):
            line.run(GEMM_BF16, 3, op=f"aten::layer_{i}", host=20, device=i % 2, given=SMALL)

    line.steps(step)


# -- what incomplete recordings are made of


def steps_with_copies_and_all_reduces(line: Timeline) -> None:
    line.world_size = 4

    def step(line: Timeline) -> None:
        line.copy("HtoD", 40, 1_000_000, stream=COPY)
        products(line, 12)
        with line.backward():
            for _ in range(4):
                products(line, 2)
                line.all_reduce(120, elements=1_000_000)
        line.join()

    line.steps(step, count=9)


def launched_ahead(line: Timeline) -> None:
    """As `host_ahead_of_the_device`, on two streams."""

    def step(line: Timeline) -> None:
        products(line, 10)
        products(line, 5, stream=COMPUTE + 1)

    line.steps(step, sync=False, count=9)
