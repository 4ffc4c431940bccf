"""Attention that is written out is fused where nothing but its result is used, and gives the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import perfkit

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 7, 8
LATER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
Attention = Callable[[Tensor, Tensor, Tensor], Any]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(WIDTH)).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * WIDTH**-0.5
    return torch.matmul(F.softmax(scores.masked_fill(LATER, float("-inf")), dim=-1), v)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores *= 0.3
    scores.masked_fill_(LATER, -1e9)
    return F.dropout(scores.softmax(dim=-1), 0.0) @ v


def two_masks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.linspace(-1, 1, LENGTH * LENGTH).view(1, 1, LENGTH, LENGTH)
    scores = bias + (q @ k.transpose(2, 3)).div(torch.tensor(2.0))
    return torch.softmax(scores.masked_fill(LATER, -math.inf), -1) @ v


def chosen_with_where(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.where(~LATER, q @ k.transpose(-2, -1), torch.tensor(torch.finfo(q.dtype).min))
    return F.softmax(scores.float(), dim=-1).type_as(q) @ v


def flattened(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (one.flatten(0, 1) for one in (q, k, v))
    bias = torch.zeros(BATCH * HEADS, LENGTH, LENGTH).masked_fill(LATER, -math.inf)
    out = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) + bias, dim=2), v)
    return out.view(BATCH, HEADS, LENGTH, WIDTH)


def by_letters(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.2
    return torch.einsum("b h i j, b h j d -> b h i d", scores.softmax(-1), v)


def head_by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = []
    for head in range(HEADS):
        scores = q[:, head] @ k[:, head].transpose(1, 2) / 3
        heads.append(scores.softmax(-1) @ v[:, head])
    return torch.stack(heads, 1)


def cross(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = F.softmax(q[:, :, :3] @ k.transpose(-2, -1), dim=-1, dtype=torch.float32).to(q.dtype)
    return weights @ v[..., :5]


FUSED = [plain, causal, in_place, two_masks, chosen_with_where, flattened, by_letters, head_by_head, cross]


def returns_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    return weights @ v + weights.mean()


def drops_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout((q @ k.transpose(-2, -1)).softmax(-1), 0.5) @ v


def sharpened(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).softmax(-1).square() @ v


def scaled_after_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1) + torch.randn(LENGTH, LENGTH).fill_(0.5)) * 2).softmax(-1) @ v


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).softmax(-2) @ v


def similarities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).logsumexp(-1, keepdim=True) + v


def learned_temperature(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) * v.mean()).softmax(-1) @ v


def a_function_of_its_own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return OwnSoftmax.apply(q @ k.transpose(-2, -1)) @ v  # type: ignore[no-any-return,no-untyped-call]


def computed_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(  # type: ignore[no-any-return]
        lambda scores: scores.softmax(-1), q @ k.transpose(-2, -1), use_reentrant=True
    ) @ v  # fmt: skip


class OwnSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return weights * (gradient - (gradient * weights).sum(-1, keepdim=True))


OTHER = [
    returns_weights, drops_weights, sharpened, scaled_after_the_mask, over_queries, similarities, learned_temperature,
    a_function_of_its_own, computed_again,
]  # fmt: skip


def results_of(attention: Attention, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The result and the gradients, twice: what a line is, is known after its first time."""
    torch.manual_seed(0)
    found = []
    for _ in range(2):
        inputs = [torch.randn(BATCH, LENGTH, HEADS, WIDTH, dtype=dtype).transpose(1, 2).requires_grad_() for _ in "qkv"]
        result = attention(*inputs)
        result.square().sum().backward()
        found += [result.detach(), *(one.grad for one in inputs)]
    return found  # type: ignore[return-value]


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert (one - other).abs().max() <= tolerance * other.abs().max()


@pytest.mark.parametrize("attention", FUSED)
def test_it_is_fused_with_the_same_result_and_gradients(attention: Attention) -> None:
    expected = results_of(attention)
    with perfkit.changes("fused-attention") as applied:
        found = results_of(attention)
    assert_close(found, expected)
    assert applied.report()[0].count
    assert applied.report()[0].places[0].function == attention.__name__


@pytest.mark.parametrize("attention", OTHER)
def test_what_is_not_attention_alone_is_computed_as_it_is_written(attention: Attention) -> None:
    expected = results_of(attention)
    with perfkit.changes("fused-attention") as applied:
        found = results_of(attention)
    assert all(map(torch.equal, found[4:], expected[4:]))
    assert_close(found, expected)
    assert applied.report()[0].count == 0


@pytest.mark.parametrize("attention", [plain, causal, in_place, flattened, returns_weights])
def test_in_autocast_types_are_those_of_the_program(attention: Attention) -> None:
    def cast(*inputs: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attention(*inputs)

    expected = results_of(cast)
    with perfkit.changes("fused-attention"):
        assert_close(results_of(cast), expected, tolerance=0.03)


def test_scores_have_the_shape_and_type_that_a_program_asks_for() -> None:
    q, k = torch.randn(2, 2, 3, 5, 4, requires_grad=True)
    with perfkit.changes("fused-attention"):
        scores = q @ k.transpose(-2, -1)
        assert isinstance(scores, Tensor)
        assert scores.shape == (2, 3, 5, 5)
        assert (scores.size(-1), scores.dim(), scores.dtype, scores.requires_grad) == (5, 4, torch.float32, True)
        assert torch.equal(scores.detach(), q.detach() @ k.detach().transpose(-2, -1).clone())
        with torch.no_grad():
            assert not (q @ k.transpose(-2, -1)).requires_grad


def test_scores_that_are_asked_for_after_their_query_was_written_into_are_an_error() -> None:
    q, k = torch.randn(2, 1, 2, 5, 4)
    with perfkit.changes("fused-attention"):
        scores = q @ k.transpose(-2, -1)
        q.zero_()
        with pytest.raises(RuntimeError, match="writes into what its attention scores are computed from"):
            scores.sum()


def test_switched_off_the_program_computes_its_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    with perfkit.changes("fused-attention") as applied:
        plain(q, k, v)
        applied.suspend()
        plain(q, k, v)
        applied.resume()
        plain(q, k, v)
    plain(q, k, v)
    assert len(calls) == 2


def test_no_gradients_flow_where_the_program_computes_without_them() -> None:
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in "qkv")
    with perfkit.changes("fused-attention"), torch.inference_mode():
        assert torch.allclose(plain(q, k, v), F.scaled_dot_product_attention(q, k, v, scale=WIDTH**-0.5), atol=1e-6)


def test_products_in_a_function_transform_are_left_alone() -> None:
    q, k, v = torch.randn(3, 4, 2, 5, 8)
    expected = torch.vmap(plain)(q[:, None], k[:, None], v[:, None])
    with perfkit.changes("fused-attention"):
        assert torch.allclose(torch.vmap(plain)(q[:, None], k[:, None], v[:, None]), expected, atol=1e-6)
        gradient = torch.func.grad(lambda q: plain(q, k, v).sum())(q)
    assert gradient.shape == q.shape


def test_functions_of_autograd_can_be_compiled_while_it_is_applied() -> None:
    compiled = torch.compile(a_function_of_its_own, backend="eager", fullgraph=True)
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in "qkv")
    expected = a_function_of_its_own(q, k, v)
    with perfkit.changes("fused-attention"):
        assert torch.allclose(compiled(q, k, v), expected, atol=1e-6)
