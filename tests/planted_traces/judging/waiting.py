"""Traces written after the ledger stood, of programs whose device waits: for the host, for data, for other ranks."""

from __future__ import annotations

from trace_chips import A100, FP16, FP32, H100, L4, MI300X, RTX, V100
from trace_machine import Machine
from trace_programs import Images, Transformer
from trace_timeline import Timeline

# -- the host reads what the device computes


def loss_of_each_micro_batch(line: Timeline) -> None:
    """Gradients are accumulated over eight micro-batches, and `total += loss.item()` after each."""
    m = Machine(line, H100, seed=21)
    model = Transformer(m, layers=6, width=1024, batch=4, length=1024)
    m.python = 3
    for _ in range(5):
        with m.step(), line.frame("train_step", 41):
            for _ in range(8):
                with line.frame("micro_step", 63):
                    line.spend(m.vary(1_300))
                    model.forward()
                    model.backward()
                    m.item()
            model.update()
    m.finish()


def boxes_selected_by_nonzero(line: Timeline) -> None:
    """A detector assigns its targets image after image: each `nonzero` waits for all that was launched."""
    m = Machine(line, RTX, seed=22)
    backbone = Images(m, batch=16, stages=((256, 100), (512, 50)), blocks=3)
    for _ in range(5):
        with m.step(), line.frame("train_step", 30, "detect.py"):
            backbone.forward()
            with line.frame("assign_targets", 117, "targets.py"):
                for _ in range(16):
                    for _ in range(5):
                        m.stream("aten::max", "reduce", 21_000 * 32, [21_000, 32], dtype=FP32)
                        m.stream("aten::ge", "elementwise", 21_000, dtype=FP32)
                        with m.op("aten::nonzero", [21_000], dtype="bool"):
                            m.launch(
                                "void at_cuda_detail::cub::DeviceReduceSingleTileKernel<int>",
                                3.2,
                                **m.shape(1, 256, 32),
                            )
                            m.to_host(4, op="aten::_local_scalar_dense")
                            m.launch(
                                "void at_cuda_detail::cub::DeviceSelectSweepKernel<int>", 4.1, **m.shape(42, 128, 32)
                            )
                        m.stream("aten::index", "gather", 2_000, dtype=FP32)
                        line.spend(m.vary(110))
            backbone.backward()
            backbone.update()
    m.finish()


def activations_printed(line: Timeline) -> None:
    """A forgotten `print(x)` in each layer of an eager model."""
    m = Machine(line, A100, seed=23)
    model = Transformer(m, layers=12, width=1024, batch=4, length=1024, compiled=False, vocabulary=8192)

    def attend_and_print() -> None:
        with line.frame("forward", 77, "model.py"):
            model.attend()
            with line.frame("__repr__", 568, "torch/_tensor.py"), line.frame("_str", 697, "torch/_tensor_str.py"):
                for _ in range(3):
                    m.stream("aten::isfinite", "elementwise", 1000, dtype=FP32)
                    m.stream("aten::masked_select", "gather", 1000, dtype=FP32)
                    m.item()
                    line.spend(m.vary(140))
                for _ in range(24):
                    m.item()
                    line.spend(m.vary(12))

    for _ in range(4):
        with m.step(), line.frame("train_step", 41):
            model.forward(attend_and_print)
            model.backward()
            model.update()
    m.finish()


def logits_kept_on_the_host(line: Timeline) -> None:
    """`history.append(logits.cpu())` in each step: 268 MB to pageable memory."""
    m = Machine(line, H100, seed=24)
    m.python = 2
    model = Transformer(m, layers=6, width=2048, batch=4, length=1024)
    for _ in range(6):
        with m.step(), line.frame("train_step", 41):
            model.forward()
            with line.frame("log_outputs", 19, "history.py"):
                m.to_host(4 * 1024 * 32_768 * 2, rate=4.2)
            model.backward()
            model.update()
    m.finish()


def valid_tokens_selected(line: Timeline) -> None:
    """A loss selects the tokens of each task by `masked_select`; the host goes on when it has their count."""
    m = Machine(line, V100, seed=25)
    model = Transformer(m, layers=6, width=768, batch=16, length=256, dtype=FP16, vocabulary=8192, compiled=False)
    for _ in range(6):
        with m.step(), line.frame("train_step", 41):
            model.forward()
            with line.frame("losses", 12, "losses.py"):
                for _ in range(40):
                    with m.op("aten::masked_select", [4096, 768], [4096, 768], dtype=FP16):
                        m.launch("void at_cuda_detail::cub::DeviceReduceKernel<int>", 4, **m.shape(80, 256, 32))
                        m.to_host(4, op="aten::_local_scalar_dense")
                        m.launch("void at_cuda_detail::cub::DeviceSelectSweepKernel<int>", 6, **m.shape(80, 128, 32))
                    m.stream("aten::binary_cross_entropy_with_logits", "elementwise", 300_000, dtype=FP16, passes=3)
                    m.stream("aten::mean", "reduce", 300_000, dtype=FP16, passes=1)
                    line.spend(m.vary(30))
            model.backward()
            model.update()
    m.finish()


# -- the host launches too slowly


def small_policy_on_h100(line: Timeline) -> None:
    """A policy of three layers with batches of 256: each kernel lasts less than its launch."""
    m = Machine(line, H100, seed=26)
    for _ in range(20):
        with m.step(), line.frame("update", 58, "ppo.py"):
            for _ in range(3):
                m.product(256, 256, 64, dtype=FP32, op="aten::addmm")
                m.stream("aten::tanh", "elementwise", 65_536, [256, 256], dtype=FP32)
            for op in (
                "aten::exp",
                "aten::mul",
                "aten::clamp",
                "aten::minimum",
                "aten::sub",
                "aten::pow",
                "aten::mul",
                "aten::sub",
            ):
                m.stream(op, "elementwise", 256, [256], dtype=FP32)
            m.stream("aten::mean", "reduce", 256, [256], dtype=FP32)
            with m.backward():
                for _ in range(12):
                    m.stream("aten::mul", "elementwise", 256, [256], dtype=FP32)
                for _ in range(3):
                    m.stream("aten::tanh_backward", "elementwise", 65_536, [256, 256], dtype=FP32)
                    m.product(256, 64, 256, dtype=FP32)
                    m.product(64, 256, 256, dtype=FP32)
                    m.stream("aten::sum", "reduce", 65_536, [256, 256], dtype=FP32, passes=1)
            m.fused_adamw(150_000, tensors=8)
    m.finish()


def paths_sampled_in_python(line: Timeline) -> None:
    """A search in plain Python between forward and loss, on values that the host made itself."""
    m = Machine(line, L4, seed=27)
    m.python = 3
    model = Transformer(m, layers=2, width=1024, batch=4, length=512, vocabulary=4096)
    for _ in range(6):
        with m.step(), line.frame("train_step", 22):
            model.forward()
            with line.frame("sample_negatives", 64, "negatives.py"):
                for _ in range(30):
                    with line.frame("walk", 41, "negatives.py"):
                        line.spend(m.vary(1_650))
            m.to_device(65_536, dims=[4, 512], dtype="long int")
            model.backward()
            model.update()
    m.finish()


def memory_collected_in_each_step(line: Timeline) -> None:
    """`gc.collect()` at the end of each step, "to be safe": 260 ms with the objects of a large program."""
    m = Machine(line, H100, seed=28)
    m.python = 2
    model = Transformer(m, layers=6, width=3072, batch=4, length=2048)
    for _ in range(6):
        with m.step(), line.frame("train_step", 41):
            model.train()
            m.item()
            with line.frame("free_memory", 97, "trainer.py"):
                start = line.now
                line.spend(m.vary(260_000))
                m.builtin("function collect", start)
    m.finish()


def checkpoint_inside_a_step(line: Timeline) -> None:
    """One step of eight saves model and optimizer: each tensor is copied to the host and written to a disk."""
    m = Machine(line, A100, seed=29)
    m.python = 2
    model = Transformer(m, layers=4, width=3072, batch=4, length=2048)
    for number in range(8):
        with m.step(), line.frame("train_step", 41):
            model.train()
            if number == 5:
                with (
                    line.frame("save_checkpoint", 133, "trainer.py"),
                    line.frame("save", 943, "torch/serialization.py"),
                ):
                    for _ in range(30):
                        m.to_host(model.parameters * 12 // 30)
                        line.spend(m.vary(38_000))
    m.finish()


# -- the host has no data


def images_decoded_by_the_training_process(line: Timeline) -> None:
    """`num_workers=0`: 64 pictures are decoded and cut one after the other."""
    m = Machine(line, L4, seed=30)
    model = Images(m, batch=64, stages=((128, 56), (256, 28)), blocks=2)
    for _ in range(5):
        with m.step(), line.frame("train_epoch", 35):
            with (
                line.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
                line.frame("fetch", 46, "torch/utils/data/_utils/fetch.py"),
            ):
                for _ in range(64):
                    with line.frame("__getitem__", 18, "dataset.py"):
                        with line.frame("convert", 949, "PIL/Image.py"):
                            line.spend(m.vary(3_900))
                        with line.frame("resize", 2220, "PIL/Image.py"):
                            line.spend(m.vary(1_150))
                        line.spend(90)
                line.op("aten::stack", 4_100)
            m.to_device(64 * 3 * 224 * 224 * 4, dims=[64, 3, 224, 224])
            model.train()
    m.finish()


def workers_too_slow_for_mi300x(line: Timeline) -> None:
    """Eight workers tokenize; the device is faster, and the training process waits at the queue."""
    m = Machine(line, MI300X, seed=31)
    m.python = 3
    model = Transformer(m, layers=4, width=4096, batch=2, length=4096)
    for _ in range(6):
        with m.step():
            with line.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                line.spend(m.vary(88_000))
            m.to_device(2 * 4096 * 8, dims=[2, 4096], dtype="long int")
            model.train()
            m.item()
    m.finish()


def batch_from_pageable_memory(line: Timeline) -> None:
    """256 pictures in float32 from memory that is not pinned; the loader's workers have time to spare."""
    m = Machine(line, RTX, seed=32)
    m.python = 2
    model = Images(m, batch=256, stages=((128, 56), (256, 28)), blocks=2)
    for _ in range(6):
        with m.step(), line.frame("train_step", 41):
            with line.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                line.spend(m.vary(310))
            with line.frame("move", 15, "batches.py"):
                m.to_device(256 * 3 * 224 * 224 * 4, pinned=False, dims=[256, 3, 224, 224])
            model.train()
    m.finish()


def features_copied_in_the_compute_stream(line: Timeline) -> None:
    """Pinned and asynchronous, but in the stream that computes: 1.2 GB of features before each forward."""
    m = Machine(line, A100, seed=33)
    m.python = 2
    model = Transformer(m, layers=2, width=2048, batch=4, length=2048)
    for _ in range(7):
        with m.step():
            for _ in range(3):
                m.to_device(400_000_000, dims=[100_000, 1000])
            m.stream("aten::to", "copy", 100_000_000, dtype=FP32, passes=1.5)
            model.train()
    m.finish()


# -- memory


def blocks_freed_and_allocated(line: Timeline) -> None:
    """Lengths change and memory is nearly full: the allocator frees its cache and asks the driver in each step."""
    m = Machine(line, L4, seed=34)
    m.python = 3
    for number in range(6):
        length = (1536, 1408, 1984, 1216, 1728, 1600)[number]
        model = Transformer(m, layers=3, width=1536, batch=4, length=length, vocabulary=16_384)

        def attend(model: Transformer = model) -> None:
            model.attend()
            with m.op("aten::empty", [], before=3):
                line.call("cudaMalloc", m.vary(850), correlation=line.next_correlation())
                m.wait("cudaFree")
                for _ in range(6):
                    line.call("cudaFree", m.vary(1_150), correlation=line.next_correlation())
                line.call("cudaMalloc", m.vary(2_900), correlation=line.next_correlation())
                line.call("cudaMalloc", m.vary(1_300), correlation=line.next_correlation())

        with m.step():
            model.forward(attend)
            model.backward()
            model.update()
    m.finish()


# -- other devices


def gradients_reduced_after_the_backward(line: Timeline) -> None:
    """All gradients in one bucket of float32, reduced when the backward is over, on eight A100."""
    m = Machine(line, A100, ranks=8, seed=35)
    m.python = 2
    model = Transformer(m, layers=12, width=2048, batch=1, length=2048)
    for _ in range(6):
        with m.step():
            line.now += 150
            model.forward()
            model.backward()
            m.all_reduce(model.parameters, rate=95)
            m.join(20)
            model.update()
    m.finish()


def rank_that_loads_late(line: Timeline) -> None:
    """The recorded rank waits in the first collective of each backward for one that got its batch 85 ms later."""
    m = Machine(line, H100, ranks=16, seed=36)
    m.python = 2
    model = Transformer(m, layers=6, width=3072, batch=4, length=2048)
    late: list[float] = []

    def bucket() -> None:
        m.all_reduce(12 * 3072**2, dtype="BFloat16", late=late.pop() if late else 0.0)

    for _ in range(6):
        with m.step():
            model.forward()
            late.append(m.vary(85_000))
            model.backward(bucket=bucket)
            m.join(20)
            model.update()
    m.finish()


def halves_of_a_model_in_turn(line: Timeline) -> None:
    """A model split over two devices without micro-batches: one of them waits while the other computes."""
    m = Machine(line, V100, devices=2, seed=37)
    model = Transformer(m, layers=3, width=2048, batch=8, length=512, dtype=FP16, vocabulary=16_384, compiled=False)
    for _ in range(5):
        with m.step():
            for device in (0, 1):
                m.device = device
                if device == 1:
                    line.free[1, 7] = max(line.free.get((1, 7), 0.0), line.free[0, 7])
                    with m.op("aten::to", [8, 512, 2048], dtype=FP16):
                        m.launch("Memcpy PtoP (Device -> Device)", 420, api="cudaMemcpyPeerAsync", bytes=16_777_216)
                for _ in range(model.layers):
                    model.block()
            with m.backward():
                for device in (1, 0):
                    m.device = device
                    if device == 0:
                        line.free[0, 7] = max(line.free[0, 7], line.free[1, 7])
                    for _ in range(model.layers):
                        model.block_backward()
            for device in (0, 1):
                m.device = device
                m.fused_adamw(model.parameters // 2)
            m.item()
            m.device = 0
    m.finish()
