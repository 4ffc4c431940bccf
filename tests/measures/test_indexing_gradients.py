"""Rows taken by an index of integers are found with the time of adding up their gradients; other indexing is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from perfkit.measures.ops._typical_times import op_calls
from perfkit.measures.ops.patterns import measure_patterns
from perfkit.measures.results.patterns import IndexingGradient
from perfkit.trace import read_trace

SORT, ADD = "void cub::DeviceRadixSortOnesweepKernel<long>", "void at::native::indexing_backward_kernel<float, 4>"
NODE = "autograd::engine::evaluate_function: IndexBackward0"


def found(build: Any) -> tuple[IndexingGradient, ...]:
    patterns = measure_patterns(op_calls(build.read()))
    assert patterns is not None
    return patterns.indexing


def shaped(x: list[int], added: list[int], index: list[Any] | None = None) -> dict[str, Any]:
    kind = "TensorList" if index else ""
    return {"Input Dims": [x, index or [], added, [], []], "Input type": ["float", kind, "float", "Scalar", "Scalar"]}


def step(
    build: Any,
    *,
    x: tuple[int, ...] = (1000, 64),
    taken: tuple[int, ...] = (5000, 64),
    kernel: str = ADD,
    node: str = NODE,
    inside: str | None = None,
    index: list[Any] | None = None,
) -> None:
    """A step of 100 us, in whose backward the kernels of the sort take 5 us, the sum 20 us and a fill 3 us."""
    build.step(1, 0, 100_000)
    build.frame("train.py(12): forward", 500, 9_000)
    build.op("aten::index", 1_000, 4_000, **{"Sequence number": 7})
    build.launch(2_000, 3_000, 9_000, "index_elementwise_kernel")
    build.op(node, 20_000, 60_000, tid=2, **{"Sequence number": 7})
    build.op("aten::zeros", 21_000, 24_000, tid=2)
    build.launch(22_000, 23_000, 26_000, "fill", tid=2)
    build.op("aten::index_put_", 29_000, 51_000, tid=2, **shaped([*x], [*taken], index))
    build.op("aten::_index_put_impl_", 30_000, 50_000, tid=2, **shaped([*x], [*taken], index))
    if inside:
        build.op(inside, 30_500, 31_500, tid=2)
    build.launch(32_000, 40_000, 45_000, SORT, tid=2)
    build.launch(33_000, 46_000, 66_000, kernel, tid=2)


def test_rows_cost_the_kernels_that_sort_and_add_them_up_at_the_line_of_the_forward(build: Any) -> None:
    step(build)

    [one] = found(build)

    assert (one.ns, one.count, one.shape, one.columns, one.taken) == (25_000, 1, "1000x64", 64, 5000)
    assert one.at is not None
    assert (one.at.file, one.at.line) == ("train.py", 12)


def test_where_the_shape_of_the_index_is_known_as_many_rows_as_there_are_count(build: Any) -> None:
    step(build, taken=(1000, 64), index=[[1000]])

    assert len(found(build)) == 1


@pytest.mark.parametrize(
    "how",
    [
        {"kernel": "void at::native::index_elementwise_kernel<128, 4>"},
        {"node": "autograd::engine::evaluate_function: IndexPutBackward0"},
        {"inside": "aten::nonzero"},
        {"taken": (1000, 64)},
        {"taken": (5000,)},
        {"taken": (5000, 32)},
        {"taken": (50, 100, 64)},
        {"x": (1000,), "taken": (5000,)},
        {"index": [[50, 100]]},
        {"index": [[5000], [5000]]},
        {"index": [[], [64]]},
    ],
    ids=[
        "no sort",
        "a write",
        "a mask",
        "as many columns perhaps",
        "two indices",
        "columns",
        "an index of two dimensions",
        "numbers",
        "a known index of two dimensions",
        "two known indices",
        "known columns",
    ],
)
def test_other_indexing_is_not_found(build: Any, how: dict[str, Any]) -> None:
    step(build, **how)

    assert found(build) == ()


@pytest.mark.parametrize(
    ("take", "is_found"),
    [
        (lambda x, index, mask: x[index], True),
        (lambda x, index, mask: x[mask], False),
        (lambda x, index, mask: x[:, index], False),
        (lambda x, index, mask: x[index, index], False),
        (lambda x, index, mask: x.index_select(0, index), False),
    ],
    ids=["rows", "a mask", "columns", "pairs", "index_select"],
)
def test_of_what_torch_records_on_a_cpu_rows_are_found_with_their_line(
    tmp_path: Path, take: Callable[..., torch.Tensor], is_found: bool
) -> None:
    x, index, mask = torch.randn(100, 8, requires_grad=True), torch.randint(8, (50,)), torch.rand(100) > 0.5
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as profiler:
        take(x, index, mask).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "t.json"))

    patterns = measure_patterns(op_calls(read_trace(tmp_path / "t.json")))

    assert patterns is not None
    assert len(patterns.indexing) == is_found
    for one in patterns.indexing:
        assert (one.shape, one.taken, one.dtype, one.count) == ("100x8", 50, "float", 1)
        assert one.ns > 0
        assert one.at is not None
        assert one.at.file.endswith("test_indexing_gradients.py")
