"""Samples that a convolution gets several times, as the step in which ops are listened to shows them."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfkit.record.samplers import repeated_samples
from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import RepeatedSamples

IMAGES, COPIES, SIDE = 6, 4, 16
ALL = IMAGES * COPIES
X = torch.randn(IMAGES, 3, SIDE, SIDE)
INDEX = torch.arange(IMAGES).repeat_interleave(COPIES)
UNEVEN = torch.tensor([0, 1, 2, 3, 4, 5] + [0] * 10 + [1, 2, 3, 4] * 2)
CONV, SECOND, HEAD = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.Linear(1024, 10)
WIDE, UP, GROUPED = (
    nn.Conv1d(3, 64, 3, padding=1),
    nn.ConvTranspose2d(3, 16, 4, stride=2),
    nn.Conv2d(24, 96, 3, groups=8),
)
SOLID, SQUARE = nn.Conv3d(3, 16, 3), nn.Linear(64, 64)
OTHER, OTHERS = nn.Linear(64, 32), torch.randn(16, 64)
NORM = nn.BatchNorm2d(16)


def found(step: Callable[[], Any], *, inference: bool = False) -> tuple[RepeatedSamples, ...]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        with torch.inference_mode(inference):
            step()
        log.stop()
    return log.inputs.repeated_samples()


def in_library(name: str) -> Callable[..., Any]:
    """A function of an installed library that copies and calls a layer."""
    names: dict[str, Any] = {}
    text = "def call(layer, x): return layer(x.repeat_interleave(4, 0))"
    exec(compile(text, f"{sysconfig.get_path('purelib')}/{name}", "exec"), names)
    return names["call"]  # type: ignore[no-any-return]


def layers_of(row: RepeatedSamples) -> list[str]:
    """The convolutions and products."""
    return [one.weight or "product" for one in row.layers if one.weight or one.flops]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "copy",
    [
        lambda: X.repeat_interleave(COPIES, dim=0),
        lambda: X.repeat(COPIES, 1, 1, 1),
        lambda: X.repeat_interleave(torch.full((IMAGES,), COPIES), dim=0),
        lambda: X.unsqueeze(1).expand(IMAGES, COPIES, 3, SIDE, SIDE).flatten(0, 1),
        lambda: X.expand(COPIES, IMAGES, 3, SIDE, SIDE).reshape(ALL, 3, SIDE, SIDE),
        lambda: torch.cat([X] * COPIES),
        lambda: X[INDEX],
        lambda: (X * 2).index_select(0, INDEX),
        lambda: (X * 2)[UNEVEN],
        lambda: X.to(memory_format=torch.channels_last).repeat_interleave(COPIES, dim=0),
    ],
    ids=["repeat_interleave", "repeat", "numbers of repeats", "expanded after", "expanded before", "cat", "index",
         "index_select", "gathered unevenly", "channels_last"],
)  # fmt: skip
def test_copies_that_an_op_of_the_step_makes_are_found_with_its_line(
    copy: Callable[[], Tensor], inference: bool
) -> None:
    def step() -> None:
        copies = copy()
        CONV(copies * 0.5)

    [row] = found(step, inference=inference)

    assert (row.samples, row.needed, layers_of(row)) == (ALL, IMAGES, ["16x3x3x3"])
    assert row.line == step.__code__.co_firstlineno + 2
    assert row.copied_at is not None
    assert row.copied_at.line == copy.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (WIDE, torch.randn(IMAGES, 3, 256)),
        (UP, X),
        (SOLID, torch.randn(IMAGES, 3, 8, 8, 8)),
        (nn.Conv2d(3, 16, 3).double(), X.double()),
    ],
    ids=["1d", "transposed", "3d", "float64"],
)
def test_all_kinds_of_convolutions_are_found(layer: nn.Module, x: Tensor) -> None:
    [row] = found(lambda: layer(x.repeat_interleave(COPIES, dim=0)))

    assert (row.samples, row.needed) == (ALL, IMAGES)


def encode(copies: Tensor) -> Tensor:
    hidden = F.max_pool2d(F.relu(CONV(copies)), 1)
    hidden = F.gelu(NORM(SECOND(hidden)) + 1)
    return HEAD(hidden.flatten(1))


@pytest.mark.parametrize("inference", [False, True])
def test_layers_and_what_is_between_them_are_counted_up_to_the_noise(inference: bool) -> None:
    def step() -> None:
        copies = X.repeat_interleave(COPIES, dim=0)
        code = encode(copies)
        F.linear(code + torch.randn_like(code), HEAD.weight.T)

    [row] = found(step, inference=inference)

    first = encode.__code__.co_firstlineno + 1
    assert layers_of(row) == ["16x3x3x3", "16x16x3x3", "product"]
    between = sorted((one.line - first, one.shape) for one in row.layers if not one.weight and not one.flops)
    assert between == [(0, "24x16x16x16"), (1, "24x16x8x8")]
    assert {one.called_at.line for one in row.layers} == {step.__code__.co_firstlineno + 2}
    assert all(one.repeated == one.calls for one in row.layers)
    # relu and pooling, batch norm, sum and gelu.
    assert sorted(one.calls for one in row.layers) == [1, 1, 1, 2, 3]


def test_two_modules_that_get_the_same_copies_are_found_together() -> None:
    def step() -> Tensor:
        copies = X.repeat_interleave(COPIES, dim=0)
        return SECOND(CONV(copies)).sum() + F.conv2d(copies, CONV.weight).sum()

    [row] = found(step)

    assert layers_of(row) == ["16x3x3x3", "16x16x3x3"]
    assert [one.repeated for one in row.layers] == [2, 1]


def test_a_layer_that_gets_other_samples_too_is_counted_by_its_share() -> None:
    def step() -> None:
        for images in (X.repeat_interleave(COPIES, dim=0), torch.randn(ALL, 3, SIDE, SIDE)):
            CONV(images)

    [row] = found(step)

    assert [(one.repeated, one.calls) for one in row.layers] == [(1, 2)]


def test_copies_of_a_dataset_are_found_in_a_step_with_others() -> None:
    copies = X.repeat_interleave(COPIES, dim=0)

    assert found(lambda: CONV(copies)) == ()
    [row] = found(lambda: OTHER(OTHERS).sum() + CONV(copies))
    assert (row.needed, row.copied_at) == (IMAGES, None)


def test_a_library_that_copies_for_the_users_layers_is_no_hindrance() -> None:
    copied = in_library("someone/copies.py")

    [row] = found(lambda: CONV(copied(nn.Identity(), X)))

    assert row.copied_at is not None
    assert row.copied_at.line == row.line
    assert found(lambda: copied(CONV, X)) == ()


def test_a_pixel_that_differs_between_layers_ends_the_layers() -> None:
    def step() -> None:
        hidden = CONV(X.repeat_interleave(COPIES, dim=0))
        hidden = hidden * torch.ones_like(hidden).index_put_((torch.tensor(1), torch.tensor(0)), torch.tensor(2.0))
        SECOND(hidden)

    [row] = found(step)

    assert layers_of(row) == ["16x3x3x3"]


def test_an_uneven_index_is_silent_before_a_batch_norm_in_training() -> None:
    def step() -> None:
        SECOND(NORM(CONV((X * 2)[UNEVEN])))

    assert found(step) == ()
    NORM.eval()
    try:
        assert layers_of(found(step)[0]) == ["16x3x3x3", "16x16x3x3"]
    finally:
        NORM.train()


@pytest.mark.parametrize(("limit", "of_image"), [("_MAX_SAMPLES", 1), ("_MAX_ELEMENTS", 3 * SIDE * SIDE // 2)])
def test_no_more_is_compared_than_a_step_may_take(limit: str, of_image: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_samples, limit, 2 * ALL * of_image)

    def step() -> None:
        for _ in range(5):
            CONV((X * 2).repeat_interleave(COPIES, dim=0))

    [row] = found(step)

    assert [(one.repeated, one.calls) for one in row.layers] == [(2, 5)]


def test_of_large_images_some_elements_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_samples, "_MAX_ELEMENTS", ALL * 64)
    monkeypatch.setattr(repeated_samples, "_SAMPLED", 64)

    def step(other: Tensor | float) -> None:
        CONV(X.repeat_interleave(COPIES, dim=0) + other)

    [row] = found(lambda: step(0.0))
    assert row.needed == IMAGES
    assert found(lambda: step(torch.randn(ALL, 3, 1, 1))) == ()


def test_images_that_agree_in_what_is_looked_at_first_are_told_apart() -> None:
    alike = X.clone()
    alike.view(IMAGES, -1)[:, ::12] = 1.0

    [row] = found(lambda: CONV(alike.repeat_interleave(COPIES, dim=0)))
    assert row.needed == IMAGES
    images = torch.randn(ALL, 3 * SIDE * SIDE).index_fill_(1, torch.arange(0, 768, 12), 1.0).view(ALL, 3, SIDE, SIDE)
    assert found(lambda: OTHER(OTHERS).sum() + CONV(images).sum()) == ()


def padded(real: int) -> Tensor:
    images = torch.zeros(ALL, 3, SIDE, SIDE)
    images[:real] = torch.randn(real, 3, SIDE, SIDE)
    return images


def drawn() -> Tensor:
    return X[torch.tensor([0, 0, 1, 3, 2, 1, 5, 0, 3, 4, 2, 2, 0, 5])]


def constant() -> Tensor:
    return torch.arange(IMAGES, dtype=torch.float32)[:, None, None, None].expand(IMAGES, 3, SIDE, SIDE)


@pytest.mark.parametrize(
    "step",
    [
        lambda: CONV(torch.randn(ALL, 3, SIDE, SIDE)),
        lambda: CONV(X).repeat_interleave(COPIES, dim=0),
        lambda: CONV(F.dropout(X.repeat_interleave(COPIES, dim=0))),
        lambda: CONV(X.repeat_interleave(COPIES, dim=0) + 0.1 * torch.randn(ALL, 3, SIDE, SIDE)),
        lambda: CONV(X.repeat_interleave(1, dim=0)),
        lambda: CONV(X[:1].repeat(ALL, 1, 1, 1)),
        lambda: CONV(X[:1].expand(ALL, 3, SIDE, SIDE)),
        lambda: CONV(torch.cat([X, X[:2]])),
        lambda: CONV(padded(4)),
        lambda: CONV(padded(2).repeat_interleave(2, dim=0)),
        lambda: CONV(constant().repeat_interleave(COPIES, dim=0)),
        lambda: CONV(torch.zeros(IMAGES, 3, SIDE, SIDE).repeat_interleave(COPIES, dim=0)),
        lambda: CONV(drawn()),
        lambda: CONV(X.repeat_interleave(COPIES, dim=0)[:, :, :4, :4]),
        lambda: CONV(X[:2].repeat_interleave(3, dim=0)),
        lambda: GROUPED(torch.randn(ALL, 3, SIDE, SIDE).repeat(1, 8, 1, 1)),
        lambda: GROUPED(X.repeat(COPIES // 2, 8, 1, 1) * torch.arange(1.0, 13).view(12, 1, 1, 1)),
        lambda: SQUARE(torch.randn(IMAGES, 64).repeat(COPIES, 1)),
        lambda: CONV(torch.full((ALL, 3, SIDE, SIDE), float("nan"))),
        lambda: F.conv2d(torch.randn(ALL, 3, SIDE, SIDE), X.repeat_interleave(COPIES, dim=0)),
    ],
    ids=[
        "different images",
        "the layer before the copies",
        "dropout",
        "noise",
        "each image once",
        "one image",
        "one image that is expanded",
        "few copies",
        "padding",
        "more padding than images",
        "constant images",
        "zeros",
        "a batch drawn from few images",
        "a cheap layer",
        "few samples",
        "copies of channels",
        "a weight for each copy",
        "no convolution",
        "NaNs",
        "copies that are weights",
    ],
)
def test_what_does_not_repeat_or_is_cheap_or_equal_by_chance_is_not_counted(step: Callable[[], Any]) -> None:
    assert found(lambda: OTHER(OTHERS).sum() + step().sum()) == ()


@pytest.mark.parametrize(
    "between",
    [
        lambda hidden: hidden - hidden.sum(0, keepdim=True),
        lambda hidden: hidden.softmax(0),
        lambda hidden: hidden.flip(0).flip(0),
        lambda hidden: hidden[torch.arange(ALL)],
        lambda hidden: hidden / hidden.flatten(1).matmul(hidden.flatten(1).T).sum(),
        lambda hidden: F.dropout(hidden),
        lambda hidden: hidden * 1 + torch.zeros_like(hidden).index_add_(0, torch.arange(ALL), hidden),
        lambda hidden: hidden.index_put((torch.arange(ALL),), hidden * 1),
        lambda hidden: hidden.topk(ALL, 0).values * 0,
        lambda hidden: hidden - torch.std_mean(hidden, 0, keepdim=True)[0],
        lambda hidden: (hidden * 1).cumsum_(0) * 0,
        lambda hidden: nn.InstanceNorm2d(16)(hidden),
    ],
    ids=["a sum of samples", "softmax over samples", "order", "index", "products of samples", "dropout", "index_add_",
         "index_put", "topk", "std_mean", "in place", "instance norm"],
)  # fmt: skip
def test_layers_after_what_combines_samples_are_not_counted(between: Callable[[Tensor], Tensor]) -> None:
    [row] = found(lambda: SECOND(between(CONV(X.repeat_interleave(COPIES, dim=0)))))

    assert layers_of(row) == ["16x3x3x3"]


def test_no_random_number_is_drawn_and_the_input_stays_as_it_is() -> None:
    copies, before = X.repeat_interleave(COPIES, dim=0), torch.get_rng_state()

    found(lambda: CONV(copies * 1))

    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(copies, X.repeat_interleave(COPIES, dim=0))


def test_channels_that_are_copied_are_no_copies_of_samples() -> None:
    grey = X[:, :1].repeat_interleave(COPIES, dim=0)

    assert found(lambda: CONV(grey.expand(ALL, 3, SIDE, SIDE).contiguous())) == ()
    assert found(lambda: CONV(grey[:, None, 0].expand(ALL, 3, SIDE, SIDE).clone() * 2)) == ()


def test_layers_behind_very_many_ops_are_not_counted_and_few_ops_are_kept() -> None:
    log = ConstantOpLog(lambda: "forward")
    samples = log.inputs._repeated_samples

    def step(ops: int) -> None:
        hidden = CONV(X.repeat_interleave(COPIES, dim=0))
        for _ in range(ops):
            hidden = hidden * 1.0
        SECOND(hidden)

    log.start()
    log.stop()
    log.start()
    step(1_000)
    log.stop()

    assert layers_of(samples.rows(has_others=False)[0]) == ["16x3x3x3"]
    assert len(samples._ops) <= repeated_samples._MAX_BETWEEN + 2
    assert layers_of(found(lambda: step(100))[0]) == ["16x3x3x3", "16x16x3x3"]


def test_no_more_first_layers_are_compared_than_a_step_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_samples, "_MAX_CHAINS", 2)

    def step() -> None:
        CONV(X.repeat(COPIES, 1, 1, 1))
        CONV(X.repeat_interleave(COPIES, dim=0))
        CONV(X[:4].repeat_interleave(COPIES, dim=0))

    assert [row.samples for row in found(step)] == [ALL, ALL]
