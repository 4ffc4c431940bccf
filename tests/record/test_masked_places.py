"""Places that attention masks and no gradient reaches, as the step in which ops are listened to shows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import MaskedPlaces, Phase

SAMPLES, PLACES, WIDTH, HEADS, KEPT = 4, 20, 16, 2, 5
KEEP = torch.arange(KEPT).expand(SAMPLES, KEPT) * 3
VISIBLE = torch.zeros(SAMPLES, PLACES, dtype=torch.bool).scatter(1, KEEP, True)
X = torch.randn(SAMPLES, PLACES, WIDTH)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.after = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None, *, is_written_out: bool = False) -> Tensor:
        q, k, v = self.qkv(x).view(SAMPLES, PLACES, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if is_written_out and mask is not None:
            a = (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1) @ v
        else:
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # attends
        return x + self.after(a.transpose(1, 2).reshape(SAMPLES, PLACES, WIDTH))


def found(loss_of: Callable[[], Tensor]) -> tuple[MaskedPlaces, ...]:
    phase: Phase = "forward"
    log = ConstantOpLog(lambda: phase)
    for _ in range(2):
        log.start()
        loss = loss_of()
        phase = "backward"
        loss.backward()
        phase = "forward"
        log.stop()
    return log.inputs.masked_places.rows()


def kept(x: Tensor) -> Tensor:
    return x.gather(1, KEEP[..., None].expand(-1, -1, WIDTH))


@pytest.mark.parametrize("is_written_out", [False, True])
def test_masked_places_that_are_dropped_at_the_end_are_found_with_the_line_that_calls_the_attention(
    is_written_out: bool,
) -> None:
    blocks = [Block(), Block()]

    def loss() -> Tensor:
        x = X
        for block in blocks:
            x = block(x, VISIBLE[:, None, None], is_written_out=is_written_out)
        return kept(x).square().mean()

    [row] = found(loss)

    assert (row.shape, row.visible) == ((SAMPLES, PLACES), SAMPLES * KEPT)
    assert {WIDTH, 3 * WIDTH} <= set(row.widths)
    assert row.called_from.line == loss.__code__.co_firstlineno + 3


def test_padding_of_a_layer_of_torch_is_found() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)

    [row] = found(lambda: layer(X, src_key_padding_mask=~VISIBLE)[VISIBLE].square().mean())

    assert (row.shape, row.visible) == ((SAMPLES, PLACES), SAMPLES * KEPT)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda block: block(X, VISIBLE[:, None, None]).square().mean(),
        lambda block: kept(block(X, None)).square().mean(),
        lambda block: kept(block(X, torch.ones(PLACES, PLACES, dtype=torch.bool).tril()[None, None])).square().mean(),
        lambda block: F.scaled_dot_product_attention(*3 * [block(X, None)]).square().mean(),
        lambda block: (block(X, None).square().mean(-1) - 1e9).clamp_min(0).sum(),
    ],
    ids=[
        "masked as keys and read",
        "dropped and not masked",
        "a causal mask",
        "without heads",
        "without a gradient at all",
    ],
)
def test_places_that_others_or_the_loss_read_are_none(loss_of: Callable[[Block], Tensor]) -> None:
    block = Block()

    assert found(lambda: loss_of(block)) == ()
