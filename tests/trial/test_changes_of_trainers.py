"""Changes reach what Lightning, transformers and Accelerate make and wrap, and every rank of a distributed training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Prints what became of the changes, how large the batches were that models saw, and what the training has.
REPORT = """
import json
import torch
import perfkit

seen = []

def see(module, args):
    seen.append([len(args[0]), str(torch.is_autocast_enabled("cpu"))])

def report(applied, optimizer, loader, losses=()):
    group = optimizer.param_groups[0]
    counts = {one.change: one.count for one in applied.report()}
    found = dict(counts=counts, seen=seen, fused=group["fused"], workers=loader.num_workers, losses=list(losses))
    print("REPORT" + json.dumps(found))
"""

LIGHTNING = """
import lightning
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.layer.register_forward_pre_hook(see)

    def training_step(self, batch):
        return self.layer(batch[0]).square().mean()

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx == 2:
            applied.suspend()
            return
        applied.resume()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)

with perfkit.changes("workers=1", "batch-size=4"), perfkit.changes(*CHANGES) as applied:
    data = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)
    trainer = lightning.Trainer(
        max_steps=4, enable_progress_bar=False, accelerator="cpu", logger=False, enable_checkpointing=False,
        detect_anomaly=True,
    )
    trainer.fit(Model(), data)
    report(applied, trainer.optimizers[0], trainer.train_dataloader)
"""

HUGGINGFACE = """
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

class Switch(TrainerCallback):
    def on_step_begin(self, arguments, state, control, **kwargs):
        (applied.suspend if state.global_step == 2 else applied.resume)()

config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
data = [{"input_ids": torch.arange(8), "labels": torch.tensor(index % 2)} for index in range(64)]
with perfkit.changes("workers=1", "batch-size=4"), perfkit.changes(*CHANGES) as applied:
    torch.autograd.set_detect_anomaly(True)
    model = BertForSequenceClassification(config)
    model.classifier.register_forward_pre_hook(see)
    arguments = TrainingArguments(
        "out", max_steps=4, use_cpu=True, report_to="none", optim="adamw_torch", save_strategy="no",
        per_device_train_batch_size=8,
    )
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Switch()])
    trainer.train()
    report(applied, trainer.optimizer, trainer.callback_handler.train_dataloader)
"""

ACCELERATE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

with perfkit.changes("workers=1", "batch-size=4"), perfkit.changes(*CHANGES) as applied:
    torch.autograd.set_detect_anomaly(True)
    model = torch.nn.Linear(4, 1)
    model.register_forward_pre_hook(see)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.1), DataLoader(TensorDataset(torch.randn(16, 4)), 8)
    )
    for step, (inputs,) in enumerate(loader):
        (applied.suspend if step == 2 else applied.resume)()
        accelerator.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    report(applied, optimizer, loader)
"""

DISTRIBUTED = """
import sys
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")

def train(between):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    data = TensorDataset(torch.randn(32, 4))
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for step, (inputs,) in enumerate(loader):
        between(step)
        optimizer.zero_grad(set_to_none=False)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer, loader

expected, *_ = train(lambda step: None)
with perfkit.changes("workers=1", "ddp-buckets=50", "ddp-bucket-view", "no-bias-before-norm") as fixed:
    with perfkit.changes("fused-optimizer", "gradients-to-none") as applied:
        losses, optimizer, loader = train(lambda step: (applied.suspend if step == 2 else applied.resume)())
assert losses == __import__("pytest").approx(expected, rel=1e-5), (losses, expected)
assert [one.count for one in fixed.report()] == [1, 1, 1, 0], fixed.report()
if dist.get_rank() == 0:
    report(applied, optimizer, loader, losses)
dist.destroy_process_group()
"""


def report_of(folder: Path, source: str, *launcher: str) -> Any:
    changes = ("fused-optimizer", "bf16-autocast", "no-anomaly-detection")
    (folder / "train.py").write_text(f"CHANGES = {changes!r}\n{REPORT}\n{source}")
    done = subprocess.run(
        [sys.executable, *launcher, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if "REPORT" in line)
    return json.loads(line.partition("REPORT")[2])


@pytest.mark.slow
@pytest.mark.parametrize("source", [LIGHTNING, HUGGINGFACE, ACCELERATE], ids=["lightning", "huggingface", "accelerate"])
def test_changes_reach_what_a_trainer_makes_and_are_switched_between_its_steps(tmp_path: Path, source: str) -> None:
    found = report_of(tmp_path, source)

    assert found["workers"] == 1
    assert found["fused"] is True
    on, off = [4, "True"], [4, "False"]
    assert found["seen"] == [on, on, off, on]
    assert all(found["counts"].values()), found["counts"]


@pytest.mark.slow
def test_changes_are_switched_at_the_same_step_of_all_ranks_and_the_losses_stay_the_same(tmp_path: Path) -> None:
    found = report_of(tmp_path, DISTRIBUTED, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    assert found["counts"] == {"fused-optimizer": 1, "gradients-to-none": 3}
    assert (found["fused"], found["workers"], len(found["losses"])) == (True, 1, 4)
