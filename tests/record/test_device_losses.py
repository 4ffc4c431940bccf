"""A loss on a device is copied without a wait, and read once the copy is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from perfkit.record.hooks import losses
from perfkit.record.hooks.losses import DeviceLoss


class Copy:
    """In place of a copy by a device: it happens when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrive: Callable[[], object] = lambda: None
        monkeypatch.setattr(
            losses, "pinned_scalar", lambda dtype: torch.empty((), dtype=dtype).as_subclass(self.memory)
        )
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self.arrive())

    @property
    def memory(self) -> type[torch.Tensor]:
        test = self

        class Memory(torch.Tensor):
            def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
                assert non_blocking
                host = self.as_subclass(torch.Tensor)
                test.arrive = lambda: torch.Tensor.copy_(host, source)
                return self

        return Memory


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.5, float("nan"), 0.0])
def test_a_loss_is_none_until_its_copy_is_there(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, value: float
) -> None:
    copy = Copy(monkeypatch)
    loss = DeviceLoss(torch.full((1,), value, dtype=dtype, requires_grad=True))
    assert loss.read(wait=False) is None
    copy.arrive()
    assert loss.read(wait=False) == pytest.approx(value, nan_ok=True)


def test_the_last_loss_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    Copy(monkeypatch)
    assert DeviceLoss(torch.tensor(0.25)).read(wait=True) == 0.25
