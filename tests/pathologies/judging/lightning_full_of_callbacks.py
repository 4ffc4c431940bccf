"""A Lightning training with the usual callbacks: early stopping, checkpoints, rates, a timer."""

import logging
import tempfile
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Keywords(pl.LightningModule):
    """Keyword spotting on log mel frames with convolutions over time."""

    def __init__(self, keywords: int = 12) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(40, 128, 9, stride=2, padding=4),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Conv1d(128, 128, 9, padding=4),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Conv1d(128, 128, 9, padding=4),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(128, keywords),
        )
        self.train_accuracy = MulticlassAccuracy(keywords)
        self.val_accuracy = MulticlassAccuracy(keywords)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.train_accuracy(logits, y)
        self.log_dict({"loss": loss, "accuracy": self.train_accuracy}, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        self.val_accuracy(self.net(x), y)
        self.log("val_accuracy", self.val_accuracy, prog_bar=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=90)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


pl.seed_everything(0, verbose=False)
x, y = torch.randn(2112, 40, 101), torch.randint(12, (2112,))
train, held_out = TensorDataset(x[:1920], y[:1920]), TensorDataset(x[1920:], y[1920:])
with tempfile.TemporaryDirectory() as folder:
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=1.0,
        logger=CSVLogger(folder),
        log_every_n_steps=10,
        callbacks=[
            ModelCheckpoint(folder, monitor="val_accuracy", mode="max", save_last=True),
            EarlyStopping("val_accuracy", mode="max", patience=5),
            LearningRateMonitor("step"),
            Timer(),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Keywords(), DataLoader(train, 64, shuffle=True), DataLoader(held_out, 96))
