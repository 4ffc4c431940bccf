"""Patterns of ops are found by order, types, shapes and strides, with times that a busy machine does not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from perfkit._location import Location
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._typical_times import op_calls, typical_times
from perfkit.measures.ops.patterns import measure_patterns
from perfkit.measures.results.patterns import Patterns
from perfkit.trace import read_trace

SCORES = {"Input Dims": [[4, 4, 256, 256]], "Input type": ["float"], "Input Strides": [[262144, 65536, 256, 1]]}


def recorded(folder: Path, step: Callable[[], Any]) -> Patterns:
    """The patterns of a function, recorded by torch on a CPU with shapes and stacks."""
    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as profiler:
        step()
    profiler.export_chrome_trace(str(folder / "t.json"))
    found = measure_patterns(op_calls(read_trace(folder / "t.json")))
    assert found is not None
    return found


def qkv(length: int = 128) -> list[torch.Tensor]:
    return [torch.randn(4, 4, length, 16, requires_grad=True) for _ in range(3)]


def test_attention_written_out_is_found_with_its_mask_its_backward_and_the_size_of_its_scores(tmp_path: Path) -> None:
    q, k, v = qkv()
    mask = torch.ones(128, 128, dtype=torch.bool).triu(1)

    def step() -> None:
        scores = (q @ k.transpose(-2, -1) / 4).masked_fill(mask, float("-inf"))
        (F.dropout(scores.softmax(-1), 0.1) @ v).sum().backward()

    [found] = recorded(tmp_path, step).attention

    assert found.ops[0] == found.ops[-1] == "aten::matmul"
    assert "aten::softmax" in found.ops
    assert found.masked
    assert found.trained
    assert found.scores_bytes == 4 * 4 * 128 * 128 * 4
    assert found.inputs_bytes == 3 * 4 * 4 * 128 * 16 * 4
    assert found.ns > found.matmuls_ns > 0


def test_a_fused_attention_and_a_classifier_with_a_softmax_are_none(tmp_path: Path) -> None:
    q, k, v = qkv()
    head = torch.nn.Linear(16, 8)

    def step() -> None:
        y = F.scaled_dot_product_attention(q, k, v)
        (head(y).softmax(-1) @ torch.ones(8, 1)).sum().backward()

    assert recorded(tmp_path, step).attention == ()


def _edges(scores: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.eye(128) > 0, F.leaky_relu(scores), -9e15 * torch.ones_like(scores)).softmax(-1)


LEFT, RIGHT = (torch.randn(4, 16, 1, requires_grad=True) for _ in range(2))
OF_PAIR = torch.randn(32, 1, requires_grad=True)


@pytest.mark.parametrize(
    "attend",
    [
        lambda h: _edges(h @ LEFT + (h @ RIGHT).mT) @ h,
        lambda h: _edges(h[0, 0] @ LEFT[0] + (h[0, 0] @ RIGHT[0]).T) @ h[0, 0],
        lambda h: _edges(torch.einsum("bhnd,hde->bhne", h, LEFT) + torch.einsum("bhnd,hde->bhen", h, RIGHT)) @ h,
        lambda h: (
            _edges(
                (
                    torch.cat((h[0, :, :, None].expand(4, 128, 128, 16), h[0, :, None].expand(4, 128, 128, 16)), -1)
                    @ OF_PAIR
                ).squeeze(-1)
            )
            @ h[0]
        ),
        lambda h: ((h[:, :, :, None] + h[:, :, None]).tanh() @ OF_PAIR[:16, 0]).softmax(-1) @ h,
    ],
    ids=["of vectors", "of one sample", "of vectors by einsum", "of each pair, concatenated", "a layer over each pair"],
)
def test_scores_that_are_no_product_of_queries_and_keys_are_no_attention_that_can_be_fused(
    tmp_path: Path, attend: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    h = qkv()[0]

    assert recorded(tmp_path, lambda: attend(h).sum().backward()).attention == ()


BIAS = torch.randn(4, 128, 128)
PLACES = torch.randn(4, 16, 255)


@pytest.mark.parametrize(
    "scores",
    [
        lambda q, k: q @ k.mT + BIAS,
        lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k) / 4,
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q.transpose(1, 2), k.transpose(1, 2)) + BIAS,
        lambda q, k: torch.baddbmm(BIAS, q[0], k[0].mT),
        lambda q, k: q @ k.mT + (q @ PLACES)[..., :128],
        lambda q, k: (k @ q.mT).mT,
        lambda q, k: torch.cat((q @ k.mT, torch.zeros(4, 4, 128, 1)), -1),
        lambda q, k: (q.view(4, 2, 256, 16) @ k[:, :2].mT).view(4, 4, 128, 128),
        lambda q, k: q[:, :, :64] @ k.mT + (q[:, :, :64, :1] + k[..., 0][:, :, None]),
    ],
    ids=[
        "with a bias",
        "by einsum",
        "by einsum of another order",
        "added to a bias",
        "and of places",
        "turned",
        "with a column for none",
        "of shared keys",
        "and a sum of vectors",
    ],
)
def test_scores_with_a_product_of_queries_and_keys_are_attention(
    tmp_path: Path, scores: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    q, k, v = qkv()

    def step() -> None:
        weights = scores(q, k).softmax(-1)
        (weights[..., :128] @ (v if weights.dim() == 4 else v[0])).sum().backward()

    [found] = recorded(tmp_path, step).attention

    assert found.shape is not None
    assert found.shape.endswith(("128x128", "128x129", "64x128"))


def test_elementwise_ops_in_a_row_make_a_chain_with_the_bytes_that_fusing_avoids(tmp_path: Path) -> None:
    x = torch.randn(64, 1024, requires_grad=True)

    [found] = recorded(tmp_path, lambda: (x.tanh() * 2 + 1).sigmoid().sum().backward()).chains

    assert found.ops == ("aten::tanh", "aten::mul", "aten::add", "aten::sigmoid")
    assert found.avoided_bytes == 3 * 2 * 64 * 1024 * 4
    assert found.bytes == 4 * 2 * 64 * 1024 * 4
    assert found.backward_ns > 0
    assert 0 < found.longest_ns < found.ns + found.backward_ns


def test_short_rows_small_tensors_and_one_op_over_many_tensors_are_no_chain(tmp_path: Path) -> None:
    x, small = torch.randn(64, 1024), torch.randn(8)

    def step() -> None:
        torch.nn.functional.relu(x + 1).sum()
        (small.tanh() * 2 + 1).sigmoid().sum()
        for one in (x, x.clone(), x.clone()):
            one.clamp_(0, 1)

    assert recorded(tmp_path, step).chains == ()


def test_copies_to_another_layout_are_distinguished_from_copies_and_moved_heads(tmp_path: Path) -> None:
    x = torch.randn(4, 32, 32, 32)

    def step() -> None:
        x.permute(0, 2, 3, 1).contiguous()
        x.clone()
        x.transpose(1, 2).contiguous()
        x.to(torch.float64)

    [found] = recorded(tmp_path, step).layout

    assert found.shape == "4x32x32x32"
    assert found.count == 1
    assert found.bytes == 4 * 32 * 32 * 32 * 4


def test_time_in_float64_includes_the_products_and_their_backward_and_no_scalars(tmp_path: Path) -> None:
    wide = torch.randn(256, 256, dtype=torch.float64, requires_grad=True)
    narrow = torch.randn(256, 256)

    of_double = recorded(tmp_path, lambda: (wide @ wide).sum().backward()).dtypes
    of_float = recorded(tmp_path, lambda: (narrow @ narrow * 0.5).sum()).dtypes
    mixed = recorded(tmp_path, lambda: narrow * wide.detach()).dtypes

    assert sum(one.ns for one in of_double) > 0
    assert of_float == ()
    assert [one.mixed for one in mixed] == [True]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_computes_again_is_a_part_of_the_backward(tmp_path: Path, reentrant: bool) -> None:
    block = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    x = torch.randn(256, 512, requires_grad=True)

    def step(again: bool) -> None:
        y = checkpoint(block, x, use_reentrant=reentrant) if again else block(x)
        y.sum().backward()

    with_it = recorded(tmp_path, lambda: step(True)).repeated
    without = recorded(tmp_path, lambda: step(False)).repeated

    assert without is None
    assert with_it is not None
    assert with_it.count == 1
    # Two products in a layer's backward, and one more for the forward.
    assert 0.15 < with_it.backward_share < 0.6
    assert with_it.ns > 0


def test_a_backward_that_is_differentiated_itself_repeats_nothing(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1)
    )
    x = torch.randn(64, 64, requires_grad=True)

    def step() -> None:
        [grad] = torch.autograd.grad((model(x) * model(x)).square().sum(), x, create_graph=True)
        grad.square().sum().backward()

    assert recorded(tmp_path, step).repeated is None


def test_an_optimizers_step_counts_its_single_and_its_list_ops(tmp_path: Path) -> None:
    def update(**how: Any) -> Any:
        parameters = [torch.randn(8, requires_grad=True) for _ in range(20)]
        for one in parameters:
            one.grad = torch.ones(8)
        optimizer = torch.optim.Adam(parameters, **how)
        [found] = recorded(tmp_path, optimizer.step).updates
        return found

    one_by_one, fused = update(foreach=False), update(fused=True)

    assert one_by_one.name == fused.name == "Adam"
    assert one_by_one.ops > 100
    assert one_by_one.foreach == one_by_one.fused == 0
    assert fused.fused == 1
    assert fused.ops < 10


def test_what_a_closure_does_is_no_part_of_the_optimizers_update(tmp_path: Path) -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01, fused=True)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = layers(torch.ones(64, 64)).square().mean()
        loss.backward()
        return loss

    [found] = recorded(tmp_path, lambda: optimizer.step(closure)).updates

    assert found.fused == 1
    assert found.ops < 10
    assert found.body is None


def test_a_call_costs_the_shortest_of_its_kind_over_the_steps(build: Any) -> None:
    for number, tanh in enumerate((300, 9_000, 280)):
        at = 100_000 * number
        build.step(number, at, at + 50_000)
        build.op("aten::tanh", at + 100, at + 100 + tanh)
        build.op("aten::add", at + 20_000, at + 20_500)
    trace = build.read()

    assert typical_times(trace).calls == {"aten::tanh": [280.0], "aten::add": [500.0]}


def test_attention_is_found_by_order_alone_and_is_shared_out_per_step(build: Any) -> None:
    for number in range(2):
        at = 100_000 * number
        build.step(number, at, at + 90_000)
        for i, name in enumerate(("matmul", "mul", "softmax", "matmul")):
            build.op(f"aten::{name}", at + 1_000 * i, at + 1_000 * i + 800, **(SCORES if name == "softmax" else {}))
    found = measure_patterns(op_calls(build.read()))

    assert found is not None
    [attention] = found.attention
    assert (attention.count, attention.ns, attention.matmuls_ns) == (1.0, 3_200, 1_600)
    assert attention.scores_bytes == 4 * 4 * 256 * 256 * 4


def test_a_layer_between_two_products_parts_them(build: Any) -> None:
    for i, name in enumerate(("matmul", "softmax", "linear", "matmul")):
        build.op(f"aten::{name}", 1_000 * i, 1_000 * i + 800)
    found = measure_patterns(op_calls(build.read()))

    assert found is not None
    assert found.attention == ()


def test_on_a_device_costs_are_those_of_the_kernels(build: Any) -> None:
    build.step(0, 0, 50_000)
    dims = {"Input Dims": [[64, 50], [50, 127]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    build.op("aten::mm", 1_000, 2_000, **dims)
    build.launch(1_500, 3_000, 10_000, "nvjet_hsh")
    found = measure_patterns(op_calls(build.read()))

    assert found is not None
    assert found.step_ns is None
    [product] = found.matmuls
    assert (product.m, product.k, product.n, product.ns) == (64, 50, 127, 7_000)


@pytest.mark.parametrize("counted", [(0, 1), (1, 0)], ids=["counts its batches", "adds between the two"])
def test_a_bias_before_a_batch_norm_costs_its_own_kernels(build: Any, counted: tuple[int, int]) -> None:
    number = {"Input Dims": [[], [], []], "Input type": ["long int", "Scalar", "Scalar"]}
    image = {"Input Dims": [[8, 64, 30, 30], [], []], "Input type": ["float", "Scalar", "Scalar"]}
    build.step(0, 0, 90_000)
    dims = {"Input Dims": [[8, 3, 32, 32], [64, 3, 3, 3], [64]], "Input type": ["float"] * 3}
    build.op("aten::conv2d", 1_000, 2_000, **dims)
    build.launch(1_200, 3_000, 10_000, "sm80_xmma_fprop_implicit_gemm")
    build.launch(1_500, 10_000, 12_500, "void at::native::elementwise_kernel<128, 2, add>")
    build.op("aten::add_", 2_000, 2_200, **(image if counted[0] else number))
    build.op("aten::batch_norm", 2_300, 3_000)
    found = measure_patterns(op_calls(build.read()))

    assert found is not None
    assert [one.ns for one in found.biases] == [2_500] * counted[1]


def test_collectives_of_the_host_cost_what_the_training_thread_waited(build: Any) -> None:
    build.step(0, 0, 100_000)
    for i in range(4):
        at = 10_000 * i
        build.op(
            "c10d::allreduce_", at + 1_000, at + 2_000, **{"Input Dims": [[[64, 64]]], "Input type": ["TensorList"]}
        )
        build.range("gloo:all_reduce", at + 1_500, at + 9_000, tid=2)
    build.op("aten::mul", 36_000, 40_000)
    found = measure_patterns(op_calls(build.read()))

    assert found is not None
    [allreduce] = found.collectives
    # From 1,000 to 9,000 four times; the last one runs during an op for 3,000 of it.
    assert allreduce.waited_ns == pytest.approx(4 * 8_000 - 3_000, abs=2)
    assert (allreduce.count, allreduce.bytes) == (4.0, 4 * 64 * 64 * 4)


def test_two_optimizers_of_one_class_are_two_updates_at_the_lines_that_call_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(count: int, **how: Any) -> Any:
        parameters = [torch.randn(8, requires_grad=True) for _ in range(count)]
        for one in parameters:
            one.grad = torch.ones(8)
        return torch.optim.Adam(parameters, **how)

    generator, critic = made(20, foreach=False), made(4, fused=True)

    def step() -> None:
        critic.step()
        generator.step()

    # In order of time, as the lines of a run have them.
    monkeypatch.setattr(
        OpCalls, "locations_of_rows", lambda _, rows: [Location(file="gan.py", line=n) for n, _ in enumerate(rows)]
    )

    updates = {found.at.line: found for found in recorded(tmp_path, step).updates if found.at is not None}

    assert sorted(updates) == [0, 1]
    assert (updates[0].fused, updates[1].fused) == (1, 0)
    assert updates[1].ops > 100 > updates[0].ops


def test_lookups_with_a_gradient_of_the_whole_table_are_found_and_with_a_sparse_one_not(
    tmp_path: Path,
) -> None:
    items, words = torch.nn.Embedding(5000, 16), torch.nn.Embedding(300, 8, sparse=True)
    frozen = torch.nn.Embedding(700, 8).requires_grad_(False)
    codes = torch.arange(60).view(3, 20)

    def step() -> None:
        (items(codes).sum() + words(codes).sum() + frozen(codes).sum()).backward()

    [found] = recorded(tmp_path, step).tables

    assert (found.rows, found.columns, found.looked_up) == (5000, 16, 60)
    assert found.ns > 0
    assert found.at is not None
    assert found.at.function.endswith("step")


def test_nodes_that_a_later_backward_of_the_step_goes_through_again_are_found(tmp_path: Path) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))
    x = torch.randn(16, 32)

    def step(retained: bool = True) -> None:
        losses, state = [], x
        for layer in layers:
            state = layer(state)
            losses.append(state.pow(2).sum())
            if retained:
                losses[-1].backward(retain_graph=True)
        if not retained:
            sum(losses).backward()  # type: ignore[attr-defined]

    retained = recorded(tmp_path, step).retained

    assert retained is not None
    # The last backward goes through three layers again, the one before through two; a layer has two nodes.
    assert (retained.count, retained.most) == (2 * (3 + 2 + 1), 4)
    assert 0 < retained.share < 1
    assert retained.at is not None
    assert retained.at.function.endswith("step")
    assert recorded(tmp_path, lambda: step(retained=False)).retained is None


def test_a_graph_of_a_gradient_and_a_checkpointed_one_are_gone_through_once(tmp_path: Path) -> None:
    layer, x = torch.nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)

    def penalty() -> None:
        (gradient,) = torch.autograd.grad(layer(x).tanh().sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()

    def again() -> None:
        checkpoint(layer, x, use_reentrant=False).sum().backward()

    assert recorded(tmp_path, again).retained is None
    assert recorded(tmp_path, penalty).retained is None


def test_writes_to_slices_are_counted_at_the_line_that_writes(tmp_path: Path) -> None:
    layer = torch.nn.Linear(8, 8)

    def step(slices: bool = True) -> None:
        state = layer(torch.randn(8))
        series = torch.zeros(10, 8)
        if slices:
            for t in range(10):
                series[t] = state * t
        else:
            series = torch.stack([state * t for t in range(10)])
        series.square().sum().backward()

    writes = recorded(tmp_path, step).slice_writes

    assert writes is not None
    assert writes.count == 10
    assert writes.ns > 0
    assert writes.at is not None
    assert writes.at.function.endswith("step")
    assert recorded(tmp_path, lambda: step(slices=False)).slice_writes is None
