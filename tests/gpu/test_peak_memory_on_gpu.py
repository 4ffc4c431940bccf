"""What holds device memory at the peak of a step: against the allocator's own statistics."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit.measures.gathering import measure
from perfkit.measures.results.memory import MemorySnapshot
from perfkit.measures.results.peak_memory import CheckpointTrade, PeakMemory
from perfkit.run.reading import read_run

# The activations, 64 MiB a layer, are well above a tenth of the peak with what other tests left (0.4 GB): workspaces.
WIDTH, BATCH, LAYERS = 1024, 16384, 4


def train(folder: Path) -> tuple[torch.nn.Module, list[int]]:
    gc.collect()  # models of other tests, which are part of cycles, have parameters too
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    peaks = []
    with perfkit.profile(
        folder, quiet=True, memory=True, schedule=perfkit.schedule(wait=1, warmup=1, active=1, repeat=1)
    ) as prof:
        for _ in prof.steps(range(18)):
            torch.cuda.reset_peak_memory_stats()
            batch = torch.randn(BATCH, WIDTH, device="cuda")
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
            peaks.append(torch.cuda.max_memory_allocated())
    return model, peaks


@pytest.mark.semantics
def test_the_peak_of_a_step_is_the_allocators_and_its_parts_are_the_tensors_sizes(tmp_path: Path) -> None:
    model, peaks = train(tmp_path / "x")
    found = measure(tmp_path / "x")
    memory = next(one for one in found.all(PeakMemory) if one.device == "cuda:0")
    parameters = sum(p.nbytes for p in model.parameters())

    # The same steps: the allocator's peak since the step's own reset.
    assert [one.peak_bytes for one in memory.steps] == [peaks[one.step] for one in memory.steps]
    assert memory.holding["parameters"] == parameters
    assert memory.holding["optimizer state"] == parameters
    assert memory.holding["inputs"] == 4 * BATCH * WIDTH
    assert memory.holding["activations"] >= 4 * BATCH * WIDTH * (LAYERS - 1)
    assert sum(memory.holding.values()) == memory.peak_bytes
    assert {part.name for part in memory.modules} >= {str(number) for number in range(LAYERS)}
    assert found.all(CheckpointTrade)


@pytest.mark.semantics
def test_the_allocators_history_of_the_steps_is_kept_and_switched_off(tmp_path: Path) -> None:
    train(tmp_path / "x")

    assert not torch._C._cuda_isHistoryEnabled()
    (path,) = read_run(tmp_path / "x").ranks[0].snapshots
    assert path.name == "memory-0.pickle"
    assert any(one.device == "cuda:0" for one in measure(tmp_path / "x").all(MemorySnapshot))
