"""A Lightning module that follows the gradient of each of its parameters, as the debugging guide suggests."""

import logging
import sys
import tempfile
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Block(nn.Module):
    """A residual block for tables."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(nn.functional.gelu(self.widen(self.norm(x))))


class Churn(pl.LightningModule):
    """Predicts whether a customer leaves."""

    def __init__(self, width: int = 96, depth: int = 16) -> None:
        super().__init__()
        self.stem = nn.Linear(40, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        score = self.head(self.blocks(self.stem(x))).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, y)
        self.log("train/loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if FIXED and self.global_step % 50:
            return
        norms = {f"grad/{name}": weight.grad.norm(2) for name, weight in self.named_parameters()}
        self.log_dict(norms)  # spent: logging-in-step # change: logging-in-step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


pl.seed_everything(0, verbose=False)
rows = torch.randn(160 * 128, 40)
left = (rows[:, :4].sum(1) > 0).float()
with tempfile.TemporaryDirectory() as folder:
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger(folder),
        log_every_n_steps=50,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Churn(), DataLoader(TensorDataset(rows, left), batch_size=128, shuffle=True))
print(f"loss {float(trainer.callback_metrics['train/loss']):.3f}")
