"""Products in the order that takes more work, as the step in which ops are listened to shows them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import Lines, Phase, ProductOrder

N, M, K, L = 120, 150, 8, 6
BATCH, HEADS = 2, 3
A, B = torch.randn(N, K, requires_grad=True), torch.randn(K, M, requires_grad=True)
C, D = torch.randn(M, L, requires_grad=True), torch.randn(N, L, requires_grad=True)
BIAS = torch.randn(N, requires_grad=True)
Q, KEYS = (torch.randn(BATCH, HEADS, N, K, requires_grad=True) for _ in range(2))
VALUES = torch.randn(BATCH, HEADS, N, L)
KEPT = SimpleNamespace(alike=None)
LAYERS = torch.nn.Sequential(torch.nn.Linear(K, M, bias=False), torch.nn.Linear(M, L, bias=False))


def found(step: Callable[[], Any], *, inference: bool = False) -> tuple[ProductOrder, ...]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        with torch.inference_mode(inference):
            step()
        log.stop()
    return log.inputs.product_orders.rows()


def sizes(row: ProductOrder) -> tuple[int, ...]:
    return row.matrices, row.rows, row.columns, row.inner, row.outer


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("step", "expected", "is_left", "is_transposed"),
    [
        (lambda: A @ B @ C, (1, N, M, K, L), True, False),
        (lambda: (A @ B).T @ D, (1, N, M, K, L), True, True),
        (lambda: D.T @ (A @ B), (1, N, M, K, L), False, False),
        (lambda: C.T @ (A @ B).T, (1, N, M, K, L), False, True),
        (lambda: (A @ B) @ C[:, 0], (1, N, M, K, 1), True, False),
        (lambda: D[:, 0] @ (A @ B), (1, N, M, K, 1), False, False),
        (lambda: F.linear(C.T, A @ B, BIAS), (1, N, M, K, L), False, True),
        (lambda: F.linear(C.T.expand(4, L, M), A @ B), (1, N, M, K, 4 * L), False, True),
        (lambda: (3 * (A @ B) / torch.tensor(7.0)).neg() @ C, (1, N, M, K, L), True, False),
        (lambda: (A @ B).mul_(0.5).T.contiguous().T @ C, (1, N, M, K, L), True, False),
        (lambda: (Q @ KEYS.mT / N) @ VALUES, (BATCH * HEADS, N, N, K, L), True, False),
        (lambda: (Q @ KEYS.mT).mT.clone() @ VALUES, (BATCH * HEADS, N, N, K, L), True, True),
        (lambda: Q[0] @ KEYS[0].mT @ C[:N], (HEADS, N, N, K, L), True, False),
    ],
    ids=[
        *("left", "left transposed", "right", "right transposed", "a vector", "a vector on the left"),
        *("a weight with a bias", "a weight of several samples", "scales", "copies"),
        *("heads", "heads transposed", "one factor for all matrices"),
    ],
)
def test_a_product_that_one_other_product_reads_is_found_with_the_sizes_of_both(
    step: Callable[[], Any], expected: tuple[int, ...], is_left: bool, is_transposed: bool, inference: bool
) -> None:
    [row] = found(step, inference=inference)

    assert (sizes(row), row.is_left, row.is_transposed, row.calls) == (expected, is_left, is_transposed, 1)
    assert row.line == step.__code__.co_firstlineno


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.einsum("nm,ml->nl", torch.einsum("nk,km->nm", A, B), C),
        lambda: torch.einsum("nm,ml->nl", torch.einsum("nk,km->mn", A, B).T, C),
        lambda: torch.baddbmm(D[None], (A @ B)[None], C[None]),
        lambda: (A @ B).expand(4, N, M) @ C.expand(4, M, L).clone(),
    ],
    ids=["einsum", "einsum transposed", "with a summand", "one matrix for all"],
)
def test_products_behind_other_functions_are_found_too(step: Callable[[], Any]) -> None:
    [row] = found(step)

    assert (row.rows, row.columns, row.inner, row.is_left) in {(N, M, K, True), (M, N, K, True)}


def test_the_lines_of_the_second_product_and_of_what_is_between_are_told() -> None:
    def step() -> None:
        alike = A @ B
        alike = alike / N
        (alike @ C).sum()

    [row] = found(step)

    first = step.__code__.co_firstlineno + 1
    assert (row.line, [at.line for at in row.read_at]) == (first, [first + 1, first + 2])
    assert Lines(period_ns=1, steps=1, product_orders=(row,)).product_orders[0].at.line == first


def test_calls_of_a_line_with_the_same_sizes_are_counted() -> None:
    [row] = found(lambda: [A @ B @ C for _ in range(3)])

    assert row.calls == 3


def test_of_a_chain_the_three_factors_that_take_most_are_found() -> None:
    wide = torch.randn(L, 400)

    def step() -> None:
        (A @ B) @ C @ wide

    # (a @ b) @ c takes 200,000 multiplications more, and (ab @ c) @ wide is in the right order.
    [row] = found(step)
    assert sizes(row) == (1, N, M, K, L)
    # Both orders are slower, and share a product.
    chain = [torch.randn(300, 2), torch.randn(2, 300), torch.randn(300, 200), torch.randn(200, 4)]
    [row] = found(lambda: chain[0] @ chain[1] @ chain[2] @ chain[3])
    assert sizes(row) == (1, 300, 300, 2, 200)


def test_a_variable_of_the_loop_is_not_kept() -> None:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        alike = A @ B
        _ = alike @ C
        log.stop()

    assert len(log.inputs.product_orders.rows()) == 1


def as_map() -> None:
    KEPT.alike = A @ B
    KEPT.alike @ C


def in_bfloat16(step: Callable[[], Any]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        step()


def with_its_gradient() -> None:
    alike = A @ B
    alike.register_hook(lambda gradient: gradient.clamp(-1, 1))
    alike @ C


def read_twice(read: Callable[[Tensor], Any]) -> Callable[[], Any]:
    def step() -> None:
        alike = A @ B
        alike @ C
        read(alike)

    return step


@pytest.mark.parametrize(
    "step",
    [
        lambda: (A @ B).softmax(-1) @ C,
        lambda: (A @ B + torch.ones(M)) @ C,
        lambda: F.dropout(A @ B) @ C,
        lambda: (A @ B * torch.rand(N, 1)) @ C,
        lambda: (1 / (A @ B)) @ C,
        lambda: torch.addmm(torch.ones(M), A, B) @ C,
        lambda: torch.addmm(A @ B, torch.rand(N, 2), torch.rand(2, M)),
        lambda: F.linear(A, B.T, torch.ones(M)) @ C,
        lambda: (A @ B).double() @ C.double(),
        read_twice(lambda alike: alike.square().mean()),
        read_twice(lambda alike: alike @ C),
        read_twice(lambda alike: alike.tolist()),
        read_twice(lambda alike: alike[0, 0].item()),
        read_twice(lambda alike: F.scaled_dot_product_attention(Q, KEYS, VALUES, attn_mask=alike[:N, :N])),
        lambda: (alike := A @ B) @ alike.T,
        as_map,
        lambda: (A @ B).detach() @ C,
        lambda: (A @ B)[:, :50] @ C[:50],
        lambda: (A @ B).view(M, N) @ D,
        lambda: (A @ B).view(2 * N, M // 2) @ C[: M // 2],
        lambda: (A @ B).view(N, 3, M // 3).transpose(0, 1) @ torch.rand(3, M // 3, L),
        lambda: A[:60] @ B @ C,
        lambda: (torch.randn(400, 100) @ torch.randn(100, 40)) @ torch.randn(40, 100),
        lambda: torch.linalg.multi_dot([A, B, C]),
        lambda: A @ (B @ C),
        lambda: LAYERS(A),
        lambda: in_bfloat16(lambda: LAYERS(A)),
        read_twice(lambda alike: pickle.dumps(alike.detach())),
        with_its_gradient,
    ],
    ids=[
        *("softmax", "a mask", "dropout", "a factor of each row", "a reciprocal"),
        *("a summand before", "as a summand", "a bias before", "a cast"),
        *("a loss reads it", "several products", "Python reads it", "Python reads an element", "a mask of attention"),
        *("with itself", "kept", "detached", "a part"),
        *("other rows", "halves of rows", "parts of columns", "a small one", "a bottleneck", "multi_dot", "in order"),
        *("two layers", "two layers in bfloat16", "saved", "its gradient is read"),
    ],
)
def test_products_that_need_their_order_or_whose_result_is_needed_are_not(step: Callable[[], Any]) -> None:
    assert found(step) == ()


@pytest.mark.parametrize("reads_after", [False, True])
def test_what_the_backward_reads_of_a_result_does_not_count_and_what_is_read_after_it_does(reads_after: bool) -> None:
    phase: list[Phase] = ["forward"]
    log = ConstantOpLog(lambda: phase[0])

    def step() -> None:
        alike = A @ B
        loss = (alike @ C).sum()
        phase[0] = "backward"
        loss.backward()
        if reads_after:
            alike.detach().abs().mean()
        phase[0] = "forward"

    for _ in range(2):
        log.start()
        step()
        log.stop()

    assert len(log.inputs.product_orders.rows()) == (not reads_after)


def test_a_result_that_is_made_without_gradients_is_not() -> None:
    def step() -> None:
        with torch.no_grad():
            alike = A @ B
        alike @ C

    assert found(step) == ()
