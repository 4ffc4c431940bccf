"""A Lightning text classifier that hashes character n-grams in __getitem__, with the default num_workers=0."""

import logging
import sys
import warnings
import zlib

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
BUCKETS = 4096
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


def features(text: str) -> Tensor:
    """Counts of hashed character n-grams."""
    counts = [0.0] * BUCKETS
    for size in (2, 3, 4):
        for start in range(len(text) - size):  # spent: input-bound
            counts[zlib.crc32(text[start : start + size].encode()) % BUCKETS] += 1.0  # spent: input-bound
    return torch.tensor(counts)


class Reviews(Dataset):
    def __init__(self) -> None:
        self.texts = [f"review {number} says " + "good bad fine " * 12 for number in range(160)]
        self.ready = [features(text) for text in self.texts] if FIXED else None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return (
            self.ready[index] if self.ready is not None else features(self.texts[index])
        ), index % 2  # change: input-bound


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(BUCKETS, 640), nn.ReLU(), nn.Linear(640, 2))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        counts, label = batch
        return nn.functional.cross_entropy(self.net(counts), label)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


pl.seed_everything(0, verbose=False)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(max_epochs=8, accelerator="cpu", devices=1, **quiet)
trainer.fit(Classifier(), DataLoader(Reviews(), batch_size=16, num_workers=0))  # change: input-bound
