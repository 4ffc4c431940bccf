"""Changes that are switched off and on while a program runs: off is really off, and the results stay the same."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import perfkit
from perfkit.errors import UsageError

pytestmark = pytest.mark.usefixtures("nothing_frozen")

DATA = torch.randn(12, 4, 4, generator=torch.Generator().manual_seed(0))


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(make: Callable[[Any], Any], between: Callable[[int], None] = lambda step: None) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = make(model.parameters())
    losses = []
    for step, inputs in enumerate(DATA):
        between(step)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("change", ["fused-optimizer", "foreach-optimizer"])
@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.AdamW(weights, lr=0.05),
        lambda weights: torch.optim.Adam([{"params": list(weights), "lr": 0.05}], amsgrad=True),
        lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
        lambda weights: torch.optim.Adagrad(weights, lr=0.05),
    ],
)
def test_an_optimizer_that_is_switched_in_the_middle_keeps_its_state(change: str, make: Any) -> None:
    expected = train(make)
    with perfkit.changes(change) as applied:
        switched = train(make, lambda step: applied.suspend() if step // 2 % 2 else applied.resume())
    assert switched == pytest.approx(expected, rel=1e-5)
    assert applied.report()[0].count == 1


def test_an_optimizer_that_is_switched_off_calls_what_it_called_before(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fused = torch._fused_adamw_
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs))
    weight = torch.nn.Parameter(torch.ones(3))
    with perfkit.changes("fused-optimizer") as applied:
        optimizer = torch.optim.AdamW([weight])
        for switch in (applied.resume, applied.suspend, applied.suspend, applied.resume):
            weight.grad = torch.ones(3)
            switch()
            optimizer.step()
    assert len(calls) == 2


def test_a_scaler_unscales_the_gradients_of_an_optimizer_that_is_switched_off() -> None:
    with perfkit.changes("fused-optimizer") as applied:
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
        assert optimizer._step_supports_amp_scaling
        applied.suspend()
        assert not hasattr(optimizer, "_step_supports_amp_scaling")
        applied.resume()
        assert optimizer._step_supports_amp_scaling


def test_settings_that_the_program_asked_for_hold_while_the_change_is_off() -> None:
    with one_thread(), perfkit.changes("threads=2", "no-anomaly-detection", "nondeterministic", "tf32") as applied:
        torch.set_num_threads(3)
        torch.autograd.set_detect_anomaly(True)
        torch.use_deterministic_algorithms(True)
        held = (2, False, False, "high")
        assert settings() == held
        for _ in range(2):
            applied.suspend()
            assert settings() == (3, True, True, "highest")
            applied.resume()
            assert settings() == held
    assert settings()[1:] == (False, False, "highest")


def settings() -> tuple[int, bool, bool, str]:
    return (
        torch.get_num_threads(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


def test_wrappers_do_nothing_while_they_are_off() -> None:
    model = torch.nn.Linear(2, 2)
    seen: list[torch.dtype] = []
    model.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with perfkit.changes("bf16-autocast", "no-grad-in-evaluation", "gradients-to-none") as applied:
        applied.suspend()
        model.eval()(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(model.parameters()).zero_grad(set_to_none=False)
    assert seen == [torch.float32]
    assert model.weight.grad is not None


def test_collections_run_and_nothing_is_frozen_while_the_change_is_off() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    with perfkit.changes("no-collections") as applied:
        optimizer.zero_grad()
        assert gc.get_freeze_count()
        applied.suspend()
        assert gc.get_freeze_count() == 0
        applied.resume()
        assert gc.get_freeze_count()
    assert gc.get_freeze_count() == 0


def test_what_cannot_be_taken_back_is_not_switched() -> None:
    with perfkit.changes("tf32", "workers=2") as applied:
        with pytest.raises(UsageError, match=r"got workers=2; apply those in a perfkit.changes of their own"):
            applied.suspend()
        assert torch.get_float32_matmul_precision() == "high"


def test_an_optimizer_that_is_made_while_the_change_is_off_gets_it_with_the_others() -> None:
    with perfkit.changes("foreach-optimizer") as applied:
        applied.suspend()
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
        assert optimizer.param_groups[0]["foreach"] is None
        applied.resume()
        assert optimizer.param_groups[0]["foreach"] is True
