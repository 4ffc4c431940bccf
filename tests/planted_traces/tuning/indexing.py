"""Networks over the edges of a graph: rows of the nodes' features are taken, and their gradients added up."""

from __future__ import annotations

from trace_chips import A100, BYTES, FP32
from trace_machine import Machine
from trace_timeline import Timeline

NODES, EDGES, WIDTH, LAYERS = 16_000, 60_000, 1024, 3


def messages_taken_by_indexing(line: Timeline) -> None:
    """``h[source]``: the backward sorts the numbers of the nodes, and adds the duplicates of each one by one."""
    _train(line, by_indexing=True)


def messages_taken_by_index_select(line: Timeline) -> None:
    _train(line, by_indexing=False)


def _train(line: Timeline, *, by_indexing: bool) -> None:
    m = Machine(line, A100)
    # Wide layers in bfloat16 between the exchanges, which are in float32: products are most of a step.
    wide = 4 * WIDTH

    def layer(number: int) -> None:
        with line.frame("forward", 20, "net.py"):
            m.product(NODES, wide, WIDTH)
            m.product(NODES, WIDTH, wide)
            _take(m, number, by_indexing=by_indexing)
            line.now += 1

    def layer_backward(number: int) -> None:
        _add_up(m, number, by_indexing=by_indexing)
        for rows, columns, over in ((NODES, wide, WIDTH), (WIDTH, wide, NODES)) * 2:
            m.product(rows, columns, over)

    for step in range(5):
        with m.step():
            numbers = [100 * step + index for index in range(LAYERS)]
            for number in numbers:
                layer(number)
            with m.backward():
                for number in reversed(numbers):
                    layer_backward(number)
            m.fused_adamw(LAYERS * 2 * wide * WIDTH)
            m.item()
    m.finish()


def _take(m: Machine, number: int, *, by_indexing: bool) -> None:
    """The forward: as many bytes are read as are written, in pieces of a row."""
    name = "aten::index" if by_indexing else "aten::index_select"
    given = {"Sequence number": number, "Input Dims": [[NODES, WIDTH], [] if by_indexing else [EDGES]]}
    given["Input type"] = [FP32, "" if by_indexing else "long int"]
    kernel = "index_elementwise_kernel<128, 4>" if by_indexing else "indexSelectLargeIndex<float, long>"
    with m.op(name, **given):
        _moving(m, f"void at::native::{kernel}", passes=2)


def _add_up(m: Machine, number: int, *, by_indexing: bool) -> None:
    node = "IndexBackward0" if by_indexing else "IndexSelectBackward0"
    op = "aten::_index_put_impl_" if by_indexing else "aten::index_add_"
    index = [] if by_indexing else [EDGES]
    given = {"Input Dims": [[NODES, WIDTH], index, [EDGES, WIDTH], [], []]}
    given["Input type"] = [FP32, "" if by_indexing else "long int", FP32, "Scalar", "Scalar"]
    # The engine's nodes are written here: they bear the number of the op that made them.
    outer, m.node = m.node, None
    m.line.now += 3
    with m.line.range(f"autograd::engine::evaluate_function: {node}", "cpu_op", **{"Sequence number": number}):
        m.line.now += 1
        with m.line.range(node, "cpu_op", **{"Sequence number": number}), m.op(op, python=1, **given):
            if by_indexing:
                for _ in range(4):
                    m.launch("void cub::DeviceRadixSortOnesweepKernel<long>", 24, **m.shape(EDGES / 2048, 256, 32))
                _moving(m, "void at::native::indexing_backward_kernel<float, 4>", passes=9)
            else:
                _moving(m, "void at::native::indexFuncLargeIndex<float, long>", passes=3)
        m.line.now += 1
    m.node = outer


def _moving(m: Machine, kernel: str, *, passes: float) -> None:
    size = EDGES * WIDTH
    lasts = 3 + passes * size * BYTES[FP32] / (m.chip.bandwidth * 1e3 * 0.8)
    m.launch(kernel, lasts, **m.shape(size / 1024, 256, 48))
