"""Programs with transforms of `torch.func`: their tensors have no memory that can be read, and training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, vmap

import perfkit
from perfkit.measures.gathering import measure
from perfkit.measures.results.peak_memory import PeakMemory
from perfkit.record.watchers.held_memory import held_storages
from perfkit.run.records import Lines


def _double(x: torch.Tensor) -> torch.Tensor:
    """A function of the user's that gets tensors of a transform."""
    return x * 2


def _train(folder: Path, steps: int, kept: list[Any]) -> torch.Tensor:
    """Train with a gradient per sample; ``kept`` gets a tensor of a transform that is over."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    weights = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept[:] = [x, weights["0.weight"]]
        return (functional_call(model, weights, (_double(x),)) - y).square().mean()

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    with perfkit.profile(
        folder, quiet=True, memory=True, schedule=perfkit.schedule(wait=1, warmup=1, active=1, repeat=1)
    ) as prof:
        for _ in range(steps):
            x, y = torch.randn(8, 16), torch.randn(8, 1)
            gradients = per_sample(weights, x, y)
            for name, parameter in weights.items():
                parameter.grad = gradients[name].mean(0).detach()
            optimizer.step()
            optimizer.zero_grad()
            prof.step(samples=8)
    return torch.cat([parameter.detach().flatten() for parameter in weights.values()])


def test_a_gradient_per_sample_trains_as_without_perfkit_and_its_lines_and_memory_are_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[Any] = []
    trained = _train(tmp_path / "run", 18, kept)

    assert trained.isfinite().all()
    found = measure(tmp_path / "run")
    assert found.all(PeakMemory)
    (lines,) = found.all(Lines)
    assert any(row.function.endswith("_double") for row in lines.traced)
    assert "training goes on" not in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_tensor_of_a_transform_that_is_over_is_left_out_of_what_is_held() -> None:
    kept = []
    weight = torch.ones(1000)

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x.sum()

    grad(keep)(weight)
    with pytest.raises(NotImplementedError):
        kept[0].untyped_storage()
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.strided)

    addresses = {storage.address for storage in held_storages([])}
    assert weight.data_ptr() in addresses
    assert nested.numel() == 18
