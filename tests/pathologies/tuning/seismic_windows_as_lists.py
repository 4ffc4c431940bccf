"""Earthquake or quarry blast: seismograms of three components, a small convolutional network and the HF Trainer."""

import sys
import tempfile
import warnings

import numpy as np
import torch
from datasets import Dataset, disable_progress_bars
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

FIXED = "--fixed" in sys.argv
warnings.filterwarnings("ignore")
disable_progress_bars()

RATE, LENGTH = 100.0, 1500
COMPONENTS = ("east", "north", "up")


def wavelet(times, onset, frequency, decay):
    since = np.clip(times - onset[:, None], 0, None)
    return np.exp(-decay[:, None] * since) * np.sin(2 * np.pi * frequency[:, None] * since)


def make_events(n, seed):
    rng = np.random.default_rng(seed)
    times = np.arange(LENGTH)[None] / RATE
    blast = rng.integers(0, 2, n)
    p_onset, lag = rng.uniform(1, 3, n), rng.uniform(1, 4, n)
    columns = {"labels": blast}
    for name in COMPONENTS:
        p = wavelet(times, p_onset, rng.uniform(4, 12, n), rng.uniform(0.5, 2, n))
        s = wavelet(times, p_onset + lag, rng.uniform(1, 5, n), rng.uniform(0.2, 1, n))
        # A blast has a weak S wave.
        trace = p + np.where(blast, 0.4, 1.5)[:, None] * s + 0.3 * rng.standard_normal((n, LENGTH))
        columns[name] = list(trace.astype(np.float32))
    dataset = Dataset.from_dict(columns)  # change: input-bound
    return dataset.with_format("torch") if FIXED else dataset


class EventNet(nn.Module):
    def __init__(self, width=72):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(len(COMPONENTS), width, 9, stride=5),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 7, stride=3),
            nn.ReLU(),
            nn.Conv1d(2 * width, 2 * width, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 2),
        )

    def forward(self, east, north, up, labels=None):
        logits = self.layers(torch.stack([east, north, up], dim=1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    set_seed(11)
    events = make_events(1600, seed=2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=3,
            per_device_train_batch_size=32,
            learning_rate=2e-3,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=EventNet(),
            args=arguments,
            train_dataset=events,  # change: input-bound
        )
        result = trainer.train()  # spent: input-bound
    print(f"steps {result.global_step} seconds {result.metrics['train_runtime']:.1f}")
    print(f"final loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
