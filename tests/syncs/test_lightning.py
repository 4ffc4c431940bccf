"""The dry run of a Lightning Trainer: the module's lines are the user's, the Trainer's own are Lightning's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from perfkit.syncs import detect_syncs


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=True)
        if loss > 1e9:  # the user's sync
            raise SystemExit("diverged")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("accelerator", ["gpu", "cpu"])
def test_a_trainer_runs_dry_and_the_report_says_whose_each_sync_is(accelerator: str, tmp_path: Any) -> None:
    module = Module()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=2)
    with warnings.catch_warnings(), detect_syncs("dry", device_of=module if accelerator == "cpu" else ()) as syncs:
        warnings.simplefilter("ignore")  # Lightning's hints about workers and loggers
        trainer = Trainer(
            accelerator=accelerator,
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, data)

    users = [(event.op, event.function, event.count) for event in syncs.events if event.owner == "user"]
    assert users == [("bool(tensor)", "Module.training_step", 4)]
    by_lightning = [event for event in syncs.events if event.owner == "lightning"]
    assert "item" in {event.op for event in by_lightning}
    assert all(event.via is not None and "lightning" in event.via for event in by_lightning)
