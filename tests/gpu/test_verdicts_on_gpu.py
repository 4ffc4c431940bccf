"""Each device rule on a GPU: a small program with its cause planted is told it first, and its corrected twin is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import perfkit
from perfkit.limits.device_peaks import peaks_of

#: Steps: past warm-up, one window, and the step for lines and shapes behind it.
STEPS = 45

Step = Callable[[], object]


def rules(folder: Path, step: Step) -> list[str]:
    """What is to be corrected, first cause first."""
    with perfkit.profile(folder, quiet=True) as prof:
        for _ in prof.steps(range(STEPS)):
            step()
    assert prof.diagnosis is not None
    return [one.rule for one in prof.diagnosis.findings if one.severity != "info" and one.follows is None]


def since_ampere() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 and bfloat16 products came with compute capability 8.0")


def products(dtype: torch.dtype, size: int = 4096, inner: int = 4096) -> Step:
    left, right = (
        torch.randn(size, inner, device="cuda", dtype=dtype),
        torch.randn(inner, size, device="cuda", dtype=dtype),
    )
    return lambda: [left @ right for _ in range(8)]


def copies(memory: str) -> Step:
    batch = torch.randn(64 * 2**20)
    batch = batch.pin_memory() if memory == "pinned" else batch
    work = products(torch.bfloat16, 2048, 2048)

    def step() -> None:
        batch.to("cuda", non_blocking=True)
        work()

    return step


def waits(*, non_blocking: bool) -> Step:
    batch = torch.randn(4 * 2**20).pin_memory()
    work = products(torch.bfloat16, 2048, 2048)

    def step() -> None:
        for _ in range(20):
            batch.to("cuda", non_blocking=non_blocking)
            work()

    return step


def attention(*, fused: bool) -> Step:
    q, k, v = (torch.randn(4, 16, 2048, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    def step() -> None:
        mixed = F.scaled_dot_product_attention(q, k, v) if fused else (q @ k.transpose(-2, -1) / 8).softmax(-1) @ v
        torch.autograd.backward(mixed.sum())

    return step


def activation(*, fused: bool) -> Step:
    x = torch.randn(4096, 8192, device="cuda", requires_grad=True)

    def by_hand(x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    return lambda: torch.autograd.backward((F.gelu(x, approximate="tanh") if fused else by_hand(x)).sum())


class Norms(nn.Module):
    """Convolutions with a norm over channels between them, which turns the layout of the images or keeps it."""

    def __init__(self, *, turns: bool) -> None:
        super().__init__()
        self.turns = turns
        self.layers = nn.ModuleList(nn.Conv2d(64, 64, 1) for _ in range(6))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x).permute(0, 2, 3, 1)
            y = self.norm(y.contiguous() if self.turns else y).permute(0, 3, 1, 2)
            x = y.contiguous() if self.turns else y
        return x


def layouts(*, turns: bool) -> Step:
    model = Norms(turns=turns).cuda()
    x = torch.randn(32, 64, 112, 112, device="cuda")
    if not turns:
        x = x.contiguous(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    return lambda: model(x).sum().backward()


def biases(*, bias: bool) -> Step:
    # cuDNN's batch norm has one block for each channel: with fewer than multiprocessors, small-grid is the first cause.
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(192, 192, 1, bias=bias), nn.BatchNorm2d(192))]
    model = nn.Sequential(*layers).cuda()
    x = torch.randn(64, 192, 64, 64, device="cuda")
    return lambda: model(x).sum().backward()


def optimizer(*, fused: bool) -> Step:
    parameters = [torch.randn(64, 64, device="cuda", requires_grad=True) for _ in range(400)]
    for one in parameters:
        one.grad = torch.ones_like(one)
    return torch.optim.AdamW(parameters, fused=fused, foreach=False).step


def launches(*, graph: bool) -> Step:
    x = torch.randn(8, 64, device="cuda")
    model = nn.Sequential(*(layer for _ in range(100) for layer in (nn.Linear(64, 64), nn.Tanh()))).cuda()
    if graph:
        with torch.no_grad():
            captured = torch.cuda.make_graphed_callables(model.eval().requires_grad_(False), (x,))
        return lambda: captured(x)
    return lambda: model(x).sum().backward()


def grids(*, blocks: int) -> Step:
    # A reduction over the long dimension: one block per few rows.
    x = torch.randn(blocks, 2**28 // blocks, device="cuda")
    return lambda: [torch.cumsum(x, dim=1) for _ in range(4)]


SMALL_AND_LARGE = [
    ("pageable-copy", lambda: copies("pageable"), lambda: copies("pinned"), {"copies-dominate"}),
    # The same wait, as the line or as the copy.
    ("blocking-copy", lambda: waits(non_blocking=False), lambda: waits(non_blocking=True), {"sync-in-step"}),
    ("attention-unfused", lambda: attention(fused=False), lambda: attention(fused=True), set()),
    ("unfused-elementwise", lambda: activation(fused=False), lambda: activation(fused=True), set()),
    ("layout-conversion", lambda: layouts(turns=True), lambda: layouts(turns=False), set()),
    ("conv-bias-before-norm", lambda: biases(bias=True), lambda: biases(bias=False), set()),
    ("unfused-optimizer", lambda: optimizer(fused=False), lambda: optimizer(fused=True), set()),
    ("launch-bound", lambda: launches(graph=False), lambda: launches(graph=True), {"many-small-ops"}),
    ("float64-in-step", lambda: products(torch.float64), lambda: products(torch.bfloat16), set()),
    ("small-grid", lambda: grids(blocks=2), lambda: grids(blocks=2**14), set()),
]


@pytest.mark.real
@pytest.mark.parametrize(("rule", "planted", "corrected", "also"), SMALL_AND_LARGE, ids=lambda one: str(one)[:24])
def test_the_planted_cause_is_told_first_and_is_gone_when_corrected(
    rule: str, planted: Callable[[], Step], corrected: Callable[[], Step], also: set[str], tmp_path: Path
) -> None:
    found = rules(tmp_path / "planted", planted())

    assert found
    assert found[0] in {rule, *also}
    assert rule not in rules(tmp_path / "corrected", corrected())


@pytest.mark.real
def test_products_in_float32_are_told_of_tf32_and_half_precision_of_nothing(tmp_path: Path) -> None:
    since_ampere()
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert rules(tmp_path / "fp32", products(torch.float32))[:1] == ["fp32-without-tf32"]
        torch.set_float32_matmul_precision("high")
        assert rules(tmp_path / "tf32", products(torch.float32))[:1] == ["low-precision-unused"]
    finally:
        torch.set_float32_matmul_precision(before)
    assert rules(tmp_path / "bf16", products(torch.bfloat16)) == []


@pytest.mark.real
def test_sizes_that_are_no_multiple_of_eight_are_told(tmp_path: Path) -> None:
    since_ampere()
    assert rules(tmp_path / "odd", products(torch.bfloat16, 4095, 4093))[:1] == ["unfriendly-shapes"]
    assert rules(tmp_path / "even", products(torch.bfloat16, 4096, 4096)) == []


@pytest.mark.real
def test_elementwise_work_alone_is_limited_by_memory(tmp_path: Path) -> None:
    x = torch.randn(64 * 2**20, device="cuda")
    with perfkit.profile(tmp_path / "x", quiet=True, record_shapes=True) as prof:
        for _ in prof.steps(range(STEPS)):
            for _ in range(8):
                x.mul_(1.0)

    assert prof.diagnosis is not None
    known = peaks_of(torch.cuda.get_device_name()) is not None
    assert prof.diagnosis.findings[0].rule == ("memory-bound" if known else "compute-bound")
