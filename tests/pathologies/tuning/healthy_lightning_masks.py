"""Segmentation in Lightning: accumulated gradients, clipping, a log every 50 steps, a short validation per epoch."""

import logging
import tempfile
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SIDE, BATCH, EPOCHS, BATCHES = 64, 4, 2, 60
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Masks(pl.LightningDataModule):
    """Pictures and masks in memory."""

    def setup(self, stage: str) -> None:
        pictures = torch.randn((BATCHES + 2) * BATCH, 3, SIDE, SIDE)
        masks = (F.avg_pool2d(pictures.mean(1, keepdim=True), 5, 1, 2) > 0).float()
        self.train = TensorDataset(pictures[: BATCHES * BATCH], masks[: BATCHES * BATCH])
        self.valid = TensorDataset(pictures[BATCHES * BATCH :], masks[BATCHES * BATCH :])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, BATCH, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.valid, BATCH)


class Segmenter(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 24, 3, padding=1)
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)
        )
        self.last = nn.Conv2d(72, 1, 3, padding=1)

    def forward(self, pictures: Tensor) -> Tensor:
        fine = self.down(pictures).relu()
        return self.last(torch.cat([fine, self.deep(fine)], dim=1))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("valid", F.binary_cross_entropy_with_logits(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    pl.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=1,
            accumulate_grad_batches=2,
            gradient_clip_val=1.0,
            log_every_n_steps=50,
            logger=CSVLogger(folder),
            callbacks=[ModelCheckpoint(folder, monitor="valid")],
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Segmenter().to(memory_format=torch.channels_last), datamodule=Masks())
        print(f"validation loss {trainer.callback_metrics['valid'].item():.4f}")


if __name__ == "__main__":
    main()
