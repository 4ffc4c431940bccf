"""The dry run of a Lightning Trainer: the module's lines are the user's, the Trainer's own are Lightning's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from perfkit.syncs import detect_syncs

#: The batches of one epoch are four. The Trainer's own syncs count at the line that called it.
PROGRAM = """\
class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
        self.worst = 0.0

    def training_step(self, batch, index):
        out = self.net(batch[0])
        loss = out.square().mean()
        self.log("loss", loss, prog_bar=True)
        if loss > 1e9:  # sync: 4
            raise SystemExit("diverged")
        self.large = out[out > 10].sum()  # sync: 4
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        if index == 3:
            self.worst = max(self.worst, outputs["loss"].item())  # sync: 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


module = Module()
with syncs(module):
    Trainer(**arguments).fit(module, data)
"""


@pytest.mark.parametrize("accelerator", ["gpu", "cpu"])
def test_a_trainer_runs_dry_and_each_sync_has_its_owner(
    accelerator: str, tmp_path: Path, run_program: Callable[..., Any], marks: Callable[[str], dict[int, int]]
) -> None:
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=2)
    arguments = {
        "accelerator": accelerator,
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
    }
    detections = []

    def syncs(module: torch.nn.Module) -> Any:
        detections.append(detect_syncs("dry", device_of=module if accelerator == "cpu" else ()))
        return detections[0]

    names = {"torch": torch, "LightningModule": LightningModule, "Trainer": Trainer}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's hints about workers and loggers
        run_program(PROGRAM, **names, syncs=syncs, arguments=arguments, data=data)

    events = detections[0].events
    assert {event.line: event.count for event in events if event.owner == "user"} == marks(PROGRAM)
    by_lightning = [event for event in events if event.owner == "lightning"]
    assert len(by_lightning) == sum(event.owner != "user" for event in events)
    assert "item" in {event.op for event in by_lightning}
    assert all(event.via is not None and "lightning" in event.via for event in by_lightning)
