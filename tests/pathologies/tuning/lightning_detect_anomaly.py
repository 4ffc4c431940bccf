"""A Lightning Trainer whose options were set while a NaN was looked for."""

import logging
import sys
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv


class Regression(LightningModule):
    """A deep and narrow network."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(30) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(32, 1))

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return (self.net(batch).squeeze(1) - batch.sum(1)).square().mean()  # spent: anomaly-detection

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        detect_anomaly=not FIXED,  # change: anomaly-detection
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(torch.randn(80, 16, 32), batch_size=None))  # spent: anomaly-detection
