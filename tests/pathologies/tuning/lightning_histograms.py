"""A Lightning callback that writes histograms of all weights to TensorBoard after every batch."""

import logging
import sys
import tempfile
import warnings

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

FIXED = "--fixed" in sys.argv
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Histograms(pl.Callback):
    """Draws how the weights are spread."""

    def __init__(self, folder: str) -> None:
        self.writer = SummaryWriter(folder)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *rest: object) -> None:
        if FIXED:
            return
        for name, weight in module.named_parameters():
            self.writer.add_histogram(
                name, weight, trainer.global_step
            )  # spent: logging-in-step  # change: logging-in-step

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.writer.close()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for name, weight in module.named_parameters() if FIXED else ():
            self.writer.add_histogram(name, weight, trainer.global_step)


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


pl.seed_everything(0, verbose=False)
data = TensorDataset(torch.randn(20, 128, 128), torch.randint(0, 10, (20, 128)))
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
with tempfile.TemporaryDirectory() as folder:
    trainer = pl.Trainer(max_epochs=4, accelerator="cpu", devices=1, callbacks=[Histograms(folder)], **quiet)
    trainer.fit(Classifier(), DataLoader(data, batch_size=None))
