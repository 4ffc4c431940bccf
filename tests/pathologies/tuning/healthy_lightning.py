"""A Lightning classifier with a metric that stays on the device and validation once per epoch."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 24, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48 * 36, 10),
        )
        self.register_buffer("right", torch.zeros(()))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        scores = self.net(batch[0])
        self.right += (scores.argmax(1) == batch[1]).float().mean()
        return nn.functional.cross_entropy(scores, batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.right -= (self.net(batch[0]).argmax(1) == batch[1]).float().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


pl.seed_everything(0, verbose=False)
data = TensorDataset(torch.randn(30, 64, 1, 28, 28), torch.randint(0, 10, (30, 64)))
held_out = TensorDataset(torch.randn(1, 64, 1, 28, 28), torch.randint(0, 10, (1, 64)))
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(max_epochs=3, accelerator="cpu", devices=1, num_sanity_val_steps=0, **quiet)
trainer.fit(Classifier(), DataLoader(data, batch_size=None), DataLoader(held_out, batch_size=None))
