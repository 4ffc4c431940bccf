"""Click-through-rate model on tabular features, trained with Lightning."""

import logging
import sys
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

FIXED = "--fixed" in sys.argv
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CARDINALITIES = [1000, 500, 200, 50, 24, 7]
N_DENSE = 13


class ClickData(L.LightningDataModule):
    def __init__(self, rows=140_000, batch_size=512):
        super().__init__()
        self.rows, self.batch_size = rows, batch_size

    def setup(self, stage):
        g = torch.Generator().manual_seed(3)
        cats = torch.stack([torch.randint(c, (self.rows,), generator=g) for c in CARDINALITIES], 1)
        dense = torch.randn(self.rows, N_DENSE, generator=g)
        effect = sum(torch.randn(c, generator=g)[cats[:, i]] for i, c in enumerate(CARDINALITIES))
        logit = 0.6 * effect + dense @ torch.randn(N_DENSE, generator=g) * 0.3 - 1.0
        clicks = (torch.rand(self.rows, generator=g) < torch.sigmoid(logit)).float()
        self.train_set = TensorDataset(cats, dense, clicks)

    def train_dataloader(self):
        order = torch.utils.data.RandomSampler(self.train_set)
        batches = torch.utils.data.BatchSampler(order, self.batch_size, drop_last=True)
        return DataLoader(self.train_set, sampler=batches, batch_size=None)


class CTRModel(L.LightningModule):
    def __init__(self, dim=16, hidden=256, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embeddings = nn.ModuleList([nn.Embedding(c, dim) for c in CARDINALITIES])
        self.tower = nn.Sequential(
            nn.Linear(dim * len(CARDINALITIES) + N_DENSE, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        self.loss_fn = nn.BCEWithLogitsLoss()
        self.train_auc = BinaryAUROC()
        self.history = []

    def forward(self, cats, dense):
        parts = [emb(cats[:, i]) for i, emb in enumerate(self.embeddings)]
        return self.tower(torch.cat([*parts, dense], dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        cats, dense, clicks = batch
        logits = self(cats, dense)
        loss = self.loss_fn(logits, clicks)
        self.train_auc.update(logits.detach(), clicks.int())
        if not FIXED:
            auc = self.train_auc.compute()  # spent: metric-in-step # change: metric-in-step
            self.log("train_auc", auc, prog_bar=True)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        auc = self.train_auc.compute()
        loss = self.trainer.callback_metrics["train_loss"]
        self.history.append((float(loss), float(auc)))
        self.log("epoch_auc", auc)
        print(f"epoch {self.current_epoch}: loss {loss:.4f} auc {auc:.4f}")
        self.train_auc.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(1, verbose=False)
    model = CTRModel()
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=ClickData())
    print(f"final loss {model.history[-1][0]:.4f}")


if __name__ == "__main__":
    main()
