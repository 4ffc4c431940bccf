"""Programs that the judging half's traces run: a transformer and a convolutional network, whole or in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trace_chips import BF16, FP32
from trace_machine import Machine

Part = Callable[[], object]


class Transformer(NamedTuple):
    """A decoder-only language model. Compiled, its elementwise ops and norms are fused."""

    machine: Machine
    layers: int = 4
    width: int = 2048
    batch: int = 4
    length: int = 2048
    vocabulary: int = 32_768
    dtype: str = BF16
    compiled: bool = True

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def parameters(self) -> int:
        return self.layers * 12 * self.width**2 + self.vocabulary * self.width

    def pointwise(self, op: str, passes: float, *, wide: int = 1, norm: bool = False) -> None:
        machine, size = self.machine, self.tokens * self.width * wide
        dims = [self.batch, self.length, self.width * wide]
        if self.compiled:
            kind, of = ("triton_norm" if norm else "triton"), op.removeprefix("aten::") + "_2"
            name = f"triton_{'red' if norm else 'poi'}_fused_{of}"
            machine.stream(name, kind, size, dims, passes=passes, of=of, dtype=self.dtype, api="cuLaunchKernel")
        else:
            machine.stream(op, "norm" if norm else "elementwise", size, dims, passes=passes, dtype=self.dtype)

    def linear(self, inputs: int, outputs: int) -> None:
        op = "aten::mm" if self.compiled else "aten::addmm"
        self.machine.product(self.tokens, outputs, inputs, dtype=self.dtype, op=op)

    def linear_backward(self, inputs: int, outputs: int) -> None:
        self.machine.product(self.tokens, inputs, outputs, dtype=self.dtype)
        self.machine.product(inputs, outputs, self.tokens, dtype=self.dtype)

    def attend(self, *, backward: bool = False) -> None:
        heads = self.width // 64
        self.machine.attention(self.batch, heads, self.length, 64, backward=backward, dtype=self.dtype)

    def block(self, attend: Part | None = None) -> None:
        """One layer's forward."""
        width = self.width
        self.pointwise("aten::native_layer_norm", 2, norm=True)
        self.linear(width, 3 * width)
        (attend or self.attend)()
        self.linear(width, width)
        if not self.compiled:
            self.pointwise("aten::add", 3)
        self.pointwise("aten::native_layer_norm", 4 if self.compiled else 2, norm=True)
        self.linear(width, 4 * width)
        self.pointwise("aten::gelu", 2, wide=4)
        self.linear(4 * width, width)
        if not self.compiled:
            self.pointwise("aten::add", 3)

    def block_backward(self, attend: Part | None = None) -> None:
        width = self.width
        self.linear_backward(4 * width, width)
        self.pointwise("aten::gelu_backward", 3, wide=4)
        self.linear_backward(width, 4 * width)
        self.pointwise("aten::native_layer_norm_backward", 4, norm=True)
        self.linear_backward(width, width)
        (attend or (lambda: self.attend(backward=True)))()
        self.linear_backward(width, 3 * width)
        self.pointwise("aten::native_layer_norm_backward", 4, norm=True)

    def forward(self, attend: Part | None = None) -> None:
        machine = self.machine
        machine.stream(
            "aten::embedding",
            "gather",
            self.tokens * self.width,
            [self.vocabulary, self.width],
            [self.batch, self.length],
            dtype=self.dtype,
        )
        for _ in range(self.layers):
            self.block(attend)
        machine.product(self.tokens, self.vocabulary, self.width, dtype=self.dtype)
        machine.stream(
            "aten::_log_softmax",
            "softmax",
            self.tokens * self.vocabulary,
            [self.tokens, self.vocabulary],
            dtype=self.dtype,
        )

    def backward(self, attend: Part | None = None, bucket: Part | None = None) -> None:
        """The backward; ``bucket`` is called after each layer, as DDP's hook is."""
        machine = self.machine
        with machine.backward():
            size = self.tokens * self.vocabulary
            machine.stream(
                "aten::_log_softmax_backward_data", "softmax", size, [self.tokens, self.vocabulary], dtype=self.dtype
            )
            self.linear_backward(self.width, self.vocabulary)
            for _ in range(self.layers):
                self.block_backward(attend)
                if bucket is not None:
                    bucket()
            machine.stream(
                "aten::embedding_dense_backward",
                "gather",
                self.tokens * self.width,
                [self.tokens, self.width],
                [self.batch, self.length],
                dtype=self.dtype,
            )

    def update(self) -> None:
        self.machine.fused_adamw(self.parameters, dtype=FP32)

    def train(self) -> None:
        self.forward()
        self.backward()
        self.update()


class Images(NamedTuple):
    """A residual network: pairs of convolutions whose norms and activations are fused by a compiler, or are not."""

    machine: Machine
    batch: int = 128
    dtype: str = "c10::Half"
    compiled: bool = True
    stages: tuple[tuple[int, int], ...] = ((128, 56), (256, 28), (512, 14))
    blocks: int = 3

    def norm(self, width: int, size: int, *, backward: bool = False) -> None:
        machine, numbers = self.machine, self.batch * width * size * size
        dims, way = [self.batch, width, size, size], "_backward" * backward
        if self.compiled:
            of = f"_native_batch_norm_relu{way}_3"
            machine.stream(
                f"triton_red_fused{of}",
                "triton_norm",
                numbers,
                dims,
                passes=3,
                of=of,
                dtype=self.dtype,
                api="cuLaunchKernel",
            )
            return
        machine.stream(
            f"aten::cudnn_batch_norm{way}", "batch_norm", numbers, dims, passes=3 + 2 * backward, dtype=self.dtype
        )
        machine.stream(
            "aten::threshold_backward" if backward else "aten::clamp_min_",
            "elementwise",
            numbers,
            dims,
            passes=2 + backward,
            dtype=self.dtype,
        )

    def forward(self, convolution: Callable[[int, int], object] | None = None) -> None:
        for width, size in self.stages:
            for _ in range(2 * self.blocks):
                if convolution is not None:
                    convolution(width, size)
                else:
                    self.machine.convolution(self.batch, width, size, dtype=self.dtype)
                self.norm(width, size)

    def backward(self, convolution: Callable[[int, int], object] | None = None) -> None:
        with self.machine.backward():
            for width, size in reversed(self.stages):
                for _ in range(2 * self.blocks):
                    self.norm(width, size, backward=True)
                    if convolution is not None:
                        convolution(width, size)
                    else:
                        self.machine.convolution(self.batch, width, size, dtype=self.dtype, backward=True)

    def update(self) -> None:
        machine = self.machine
        with machine.line.range("Optimizer.step#SGD.step"):
            machine.line.now += 90
            machine.stream("aten::_fused_sgd_", "optimizer", 25_000_000, passes=5, dtype=FP32, of="FusedSGD")

    def train(self) -> None:
        self.forward()
        self.backward()
        self.update()
