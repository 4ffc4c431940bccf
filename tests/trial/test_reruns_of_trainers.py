"""Trainers write logs and checkpoints by themselves; a rerun keeps them in its own folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.trial.reruns import RerunPlan, TriedProgram, start_rerun

LIGHTNING = """
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        loss = self.layer(batch[0]).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

lightning.seed_everything(1)
data = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)
lightning.Trainer(max_epochs=10, enable_progress_bar=False, accelerator="cpu", log_every_n_steps=1).fit(Model(), data)
"""

HUGGINGFACE = """
import torch
from transformers import Trainer, TrainingArguments, BertConfig, BertForSequenceClassification

config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
data = [{"input_ids": torch.arange(8), "labels": torch.tensor(index % 2)} for index in range(64)]
arguments = TrainingArguments(max_steps=100, save_steps=5, use_cpu=True, report_to="none")
Trainer(BertForSequenceClassification(config), arguments, train_dataset=data).train()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "folder", "written"),
    [(LIGHTNING, "lightning_logs", "lightning_logs/version_1"), (HUGGINGFACE, "trainer_output", "checkpoint-5")],
)
def test_a_trainer_writes_into_the_rerun_s_folder(
    user: Path,
    workspace: Path,
    unchanged: Callable[[], Callable[[], bool]],
    source: str,
    folder: str,
    written: str,
) -> None:
    (user / "train.py").write_text(source)
    (user / folder / "version_0").mkdir(parents=True)
    (user / folder / "version_0" / "metrics.csv").write_text("step,loss")
    same = unchanged()
    with start_rerun(TriedProgram("train.py"), RerunPlan(steps=20), workspace) as running:
        result = running.wait(250)
        output = (running.folder / "output.txt").read_text()
        files = [str(path) for path in Path(f"{running.folder}/root{user}/{folder}").rglob("*")]

    assert result.ending == "stopped", (result.message, output)
    assert [loss for loss in result.losses if loss is None] == []
    assert same()
    assert any(written in file for file in files), output
