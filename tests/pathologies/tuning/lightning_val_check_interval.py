"""A Lightning trainer that validates after every tenth batch."""

import logging
import sys
import warnings

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Denoiser(pl.LightningModule):
    """Small convolutions over 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 1, 1)
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("error", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


pl.seed_everything(0, verbose=False)
clean = torch.rand(104 * 8, 1, 32, 32)
noisy = clean + 0.1 * torch.randn_like(clean)
split = 80 * 8
trainer = pl.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=1,
    val_check_interval=1.0 if FIXED else 10,  # change: validation-too-often
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(  # spent: validation-too-often
    Denoiser(),
    DataLoader(TensorDataset(noisy[:split], clean[:split]), batch_size=8),
    DataLoader(TensorDataset(noisy[split:], clean[split:]), batch_size=8),
)
