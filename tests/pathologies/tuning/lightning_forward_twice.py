"""A Lightning module that encodes the same batch anew for each of its losses."""

import logging
import sys
import warnings

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Embedder(pl.LightningModule):
    """Learns to rebuild its input, with a small and even code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 64)
        )
        self.decoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256))

    def rebuilt(self, x: Tensor, code: Tensor | None) -> Tensor:
        return nn.functional.mse_loss(self.decoder(self.encoder(x) if code is None else code), x)

    def small(self, x: Tensor, code: Tensor | None) -> Tensor:
        return (
            (self.encoder(x) if code is None else code).square().mean()
        )  # spent: unexpected-call-count  # change: unexpected-call-count

    def even(self, x: Tensor, code: Tensor | None) -> Tensor:
        return (
            (self.encoder(x) if code is None else code).mean(0).square().mean()
        )  # spent: unexpected-call-count  # change: unexpected-call-count

    def training_step(self, x: Tensor, index: int) -> Tensor:
        code = self.encoder(x) if FIXED else None
        return self.rebuilt(x, code) + 0.1 * self.small(x, code) + 0.1 * self.even(x, code)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


pl.seed_everything(0, verbose=False)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(max_epochs=4, accelerator="cpu", devices=1, **quiet)
trainer.fit(Embedder(), DataLoader(torch.randn(20 * 64, 256), batch_size=64))
