"""A Lightning regression of molecule activities whose rank correlation is shown while it trains."""

import logging
import sys
import warnings

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.regression import SpearmanCorrCoef

FIXED = "--fixed" in sys.argv
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Activity(pl.LightningModule):
    """Activity of a molecule from its fingerprint."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1))
        self.spearman = SpearmanCorrCoef()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        fingerprint, activity = batch
        predicted = self.net(fingerprint).squeeze(1)
        loss = nn.functional.huber_loss(predicted, activity)
        self.spearman.update(predicted.detach(), activity)
        if not FIXED:
            self.log("train/spearman", self.spearman.compute())  # spent: growing-step # change: growing-step
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("train/spearman_epoch", self.spearman.compute())
        self.spearman.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


pl.seed_everything(0, verbose=False)
fingerprints = (torch.rand(25_600, 1024) < 0.05).float()
activities = fingerprints[:, :32].sum(1) + 0.1 * torch.randn(len(fingerprints))
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Activity(), DataLoader(TensorDataset(fingerprints, activities), batch_size=128, shuffle=True))
print(f"spearman {float(trainer.callback_metrics['train/spearman_epoch']):.3f}")
