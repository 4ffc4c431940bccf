"""Traces that took part in choosing numbers, with conversions between dtypes; see traces.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from trace_chips import BF16, BYTES, FP32, H100
from trace_machine import CLASSES, Machine
from trace_programs import Transformer
from trace_timeline import Timeline

NODE = "autograd::engine::evaluate_function: "
ACCUMULATES = "torch::autograd::AccumulateGrad"

Shape = Sequence[int]


class Converting:
    """A machine whose ops convert, with a node for each conversion that was made in the forward."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.number = machine, 0
        self.made: list[tuple[int, Shape, str, str]] = []

    def convert(self, shape: Shape, source: str = FP32, target: str = BF16, *, number: int | None = None) -> None:
        """`tensor.to(dtype)`."""
        if number is None:
            self.number += 1
            self.made.append((self.number, shape, target, source))
        numbered = {} if number is not None else {"Sequence number": self.number}
        size, machine = prod(shape), self.machine
        copied: dict[str, Any] = {"Input Dims": [shape, shape, []], "Input type": [target, source, "Scalar"]}
        name, threads, warps, each, share = CLASSES["copy"]
        lasts = 2.1 + size * (BYTES[source] + BYTES[target]) / (machine.chip.bandwidth * 1e3 * share)
        with (
            machine.op("aten::to", shape, dtype=source, python=1, before=1, **numbered),
            machine.op("aten::_to_copy", shape, dtype=source, python=0, before=1, **numbered),
            machine.op("aten::copy_", python=0, **copied),
        ):
            machine.launch(name, lasts, **machine.shape(size * each / threads, threads, warps))

    def linear(self, batch: int, inputs: int, outputs: int, *, converts: bool, source: str = FP32) -> None:
        """A linear layer of float32 weights under autocast; ``converts``: its weight is not in the cache."""
        weight = [outputs, inputs]
        given: dict[str, Any] = {"Input Dims": [[batch, inputs], weight], "Input type": [source, FP32]}
        with self.machine.op("aten::linear", **given):
            if converts:
                self.convert(weight)
            if source == FP32:
                self.convert([batch, inputs])
            self.machine.product(batch, outputs, inputs)

    @contextmanager
    def _node(self, name: str, **numbered: int) -> Iterator[None]:
        """A node of the backward whose ops have no nodes of their own."""
        machine = self.machine
        kept, machine.node = machine.node, None
        with machine.line.range(NODE + name, "cpu_op", **{key.replace("_", " "): n for key, n in numbered.items()}):
            machine.line.now += 1.5
            yield
            machine.line.now += 1
        machine.node = kept

    def converted_back(self) -> None:
        """The nodes of all conversions so far."""
        for number, shape, source, target in reversed(self.made):
            with self._node("ToCopyBackward0", Sequence_number=number):
                self.convert(shape, source, target, number=number)
        self.made.clear()

    def accumulate(self, *shapes: Shape) -> None:
        """A gradient for each weight."""
        for shape in shapes:
            with (
                self._node(ACCUMULATES),
                self.machine.line.range(ACCUMULATES, "cpu_op", **{"Input Dims": [shape], "Input type": [FP32]}),
            ):
                self.machine.line.now += 2


def _products_back(machine: Machine, batch: int, inputs: int, outputs: int) -> None:
    machine.product(batch, inputs, outputs)
    machine.product(inputs, outputs, batch)


def autocast_in_a_loop_over_time(line: Timeline) -> None:
    """A recurrent cell: autocast is entered in each of 24 iterations, and converts both weights again."""
    machine = Machine(line, H100)
    cell, width, batch, iterations = Converting(machine), 2048, 4096, 24

    for _ in range(4):
        with machine.step():
            for _ in range(iterations):
                with line.frame("forward", 31, "cell.py"):
                    for _ in range(2):
                        cell.linear(batch, width, 4 * width, converts=True, source=BF16)
                    machine.stream("aten::_thnn_fused_lstm_cell", "elementwise", batch * width * 4, passes=3)
            with machine.backward():
                for _ in range(iterations):
                    machine.stream("aten::_thnn_fused_lstm_cell_backward", "elementwise", batch * width * 4, passes=4)
                    for _ in range(2):
                        _products_back(machine, batch, width, 4 * width)
                cell.converted_back()
                cell.accumulate(*[[4 * width, width]] * 2)
            machine.fused_adamw(8 * width**2, tensors=2)
    machine.finish()


def logits_converted_for_the_loss(line: Timeline) -> None:
    """A model in bfloat16 with 128,256 tokens, and `logits.float()` before the loss."""
    machine = Machine(line, H100)
    model = Transformer(machine, layers=2, width=1024, vocabulary=128_256, compiled=False)
    head, logits = Converting(machine), [model.batch, model.length, model.vocabulary]
    size = model.tokens * model.vocabulary

    for _ in range(4):
        with machine.step():
            for _ in range(model.layers):
                model.block()
            model.linear(model.width, model.vocabulary)
            with line.frame("loss_of", 58):
                head.convert(logits, BF16, FP32)
                machine.stream("aten::_log_softmax", "softmax", size, logits, passes=2, dtype=FP32)
            with machine.backward():
                machine.stream("aten::_log_softmax_backward_data", "softmax", size, logits, passes=3, dtype=FP32)
                head.converted_back()
                model.linear_backward(model.width, model.vocabulary)
                for _ in range(model.layers):
                    model.block_backward()
            machine.fused_adamw(model.parameters, dtype=BF16)
    machine.finish()


def each_weight_converted_once(line: Timeline) -> None:
    """Ordinary autocast with few tokens: 12 weights of each shape, converted once per step, which takes 9% of it."""
    machine = Machine(line, H100)
    model, width, tokens, layers = Converting(machine), 2048, 4096, 12

    for _ in range(4):
        with machine.step():
            for _ in range(layers):
                model.linear(tokens, width, 4 * width, converts=True)
                machine.stream("aten::relu", "elementwise", tokens * 4 * width, [tokens, 4 * width], passes=2)
                model.linear(tokens, 4 * width, width, converts=True, source=BF16)
            with machine.backward():
                for _ in range(layers):
                    _products_back(machine, tokens, 4 * width, width)
                    machine.stream("aten::threshold_backward", "elementwise", tokens * 4 * width, passes=3)
                    _products_back(machine, tokens, width, 4 * width)
                model.converted_back()
                model.accumulate(*[[4 * width, width], [width, 4 * width]] * layers)
            machine.fused_adamw(8 * width**2 * layers, tensors=2 * layers)
    machine.finish()
