"""A Lightning data module whose training data comes in shards of JSON lines, one shard per epoch in turn."""

import json
import logging
import random
import sys
import tempfile
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
HOSTS, FIELDS, ROWS = 4, 32, 2500
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class ServerLogs(pl.LightningDataModule):
    """Measurements of some servers; each epoch has those of all hosts in another order."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.kept: TensorDataset | None = None

    def read(self) -> TensorDataset:
        """Parse the files of all hosts."""
        rows, labels = [], []
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open() as file:
                for line in file:
                    entry = json.loads(line)  # spent: input-bound
                    rows.append([entry["values"][f"metric_{i}"] for i in range(FIELDS)])  # spent: input-bound
                    labels.append(entry["alert"])
        return TensorDataset(torch.tensor(rows), torch.tensor(labels))  # spent: input-bound

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        if self.kept is None or not FIXED:
            self.kept = self.read()  # spent: input-bound # change: input-bound
        return DataLoader(self.kept, batch_size=1000, shuffle=True)


class Alerts(pl.LightningModule):
    """Predicts an alert."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FIELDS, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 2))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def write(folder: Path) -> None:
    """One file per host."""
    draw = random.Random(0)
    for host in range(HOSTS):
        with (folder / f"host-{host}.jsonl").open("w") as file:
            for _ in range(ROWS):
                values = {f"metric_{i}": round(draw.gauss(0, 1), 4) for i in range(FIELDS)}
                file.write(json.dumps({"host": host, "values": values, "alert": int(values["metric_0"] > 1)}) + "\n")


pl.seed_everything(0, verbose=False)
with tempfile.TemporaryDirectory() as made:
    write(Path(made))
    trainer = pl.Trainer(
        max_epochs=10,
        reload_dataloaders_every_n_epochs=1,  # change: input-bound
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Alerts(), datamodule=ServerLogs(Path(made)))
