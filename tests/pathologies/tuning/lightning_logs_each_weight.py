"""A Lightning module that logs the size of each of its weights, and its change, in every step."""

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


class Denoiser(pl.LightningModule):
    """A deep and narrow network that removes noise from signals."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(40) for layer in (nn.Linear(128, 128), nn.GELU())]
        self.net = nn.Sequential(*layers, nn.Linear(128, 128))

    def training_step(self, signals: Tensor, index: int) -> Tensor:
        clean = signals.cumsum(1) / 16
        loss = nn.functional.mse_loss(self.net(clean + 0.1 * torch.randn_like(clean)), clean)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: object, batch: Tensor, index: int) -> None:
        if FIXED and index % 50:  # change: logging-in-step
            return
        sizes = torch._foreach_norm(list(self.parameters()))
        for (name, _), size in zip(self.named_parameters(), sizes, strict=True):
            self.log(
                f"size/{name}", size, on_step=True, on_epoch=True
            )  # spent: logging-in-step  # change: logging-in-step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


pl.seed_everything(0, verbose=False)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(max_epochs=2, accelerator="cpu", devices=1, **quiet)
trainer.fit(Denoiser(), DataLoader(torch.randn(150, 256, 128), batch_size=None))
