"""The steps of the dry run for syncs: what each step has, and what only some have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.record import run_recorder
from perfkit.record.watchers import settings_probe
from perfkit.run.reading import read_run


@pytest.mark.parametrize(("every", "in_steps"), [(1, 2), (2, 1)])
def test_a_loss_that_is_read_after_the_update_is_counted_in_each_step_that_reads_it(
    every: int, in_steps: int, tmp_path: Path
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    with perfkit.profile(tmp_path / "run", quiet=True, report=False, detect_syncs="dry"):
        for step in range(60):
            loss = model(torch.ones(2, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % every == every - 1:
                total += loss.item()

    syncs = read_run(tmp_path / "run").ranks[0].syncs
    assert syncs is not None
    assert syncs.steps == 2
    assert [(event.op, event.per_step, event.in_steps) for event in syncs.events] == [("item", in_steps / 2, in_steps)]


def test_a_value_that_perfkit_reads_between_two_steps_is_no_sync_of_the_line_that_begins_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A sample of the states is read at each eighth reading of the settings; here between all steps.
    monkeypatch.setattr(run_recorder, "_PROBE_NS", 0)
    monkeypatch.setattr(settings_probe, "_STATE_EVERY", 1)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(120, 4)), batch_size=2)
    with perfkit.profile(tmp_path / "run", quiet=True, report=False, detect_syncs="dry"):
        for (batch,) in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    [rank] = read_run(tmp_path / "run").ranks.values()
    assert rank.rank is not None
    assert rank.rank.settings["optimizer.subnormal_share"] == "0.0000"
    assert rank.syncs is not None
    assert rank.syncs.steps == 2
    assert rank.syncs.events == ()
