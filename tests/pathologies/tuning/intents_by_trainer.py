"""Intent classification of support messages with a small transformer and the HF Trainer."""

import sys
import tempfile
import warnings

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed
from transformers.modeling_outputs import SequenceClassifierOutput

FIXED = "--fixed" in sys.argv
warnings.filterwarnings("ignore")

VOCAB, PAD, CLASSES = 4000, 0, 8


def make_messages(n, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    lengths = np.clip(rng.lognormal(3.0, 0.75, n), 6, 128).astype(int)
    rows = {"input_ids": [], "length": [], "labels": labels.tolist()}
    keywords = rng.integers(100, VOCAB, (CLASSES, 20))
    for label, length in zip(labels, lengths, strict=False):
        tokens = rng.integers(1, VOCAB, length)
        hits = rng.random(length) < 0.15
        tokens[hits] = rng.choice(keywords[label], hits.sum())
        rows["input_ids"].append(tokens.tolist())
        rows["length"].append(int(length))
    return Dataset.from_dict(rows)


def collate(examples):
    ids = [torch.tensor(e["input_ids"]) for e in examples]
    padded = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
    return {
        "input_ids": padded,
        "attention_mask": padded != PAD,
        "labels": torch.tensor([e["labels"] for e in examples]),
    }


class IntentModel(nn.Module):
    def __init__(self, dim=112, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.positions = nn.Embedding(512, dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, CLASSES))

    def forward(self, input_ids, attention_mask, labels=None):
        pos = torch.arange(input_ids.size(1), device=input_ids.device)
        h = self.tokens(input_ids) + self.positions(pos)
        h = self.encoder(h, src_key_padding_mask=~attention_mask)  # spent: imbalanced-data
        weight = attention_mask.unsqueeze(-1).to(h.dtype)
        pooled = (h * weight).sum(1) / weight.sum(1)
        logits = self.head(pooled)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def training_args(folder):
    batching = {}
    if FIXED:
        batching = {"train_sampling_strategy": "group_by_length", "length_column_name": "length"}
    return TrainingArguments(  # change: imbalanced-data
        output_dir=folder,
        num_train_epochs=1,
        per_device_train_batch_size=24,
        learning_rate=5e-4,
        warmup_steps=20,
        logging_steps=40,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_drop_last=True,
        **batching,
    )


def main():
    set_seed(7)
    train_set = make_messages(3840, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=IntentModel(),
            args=training_args(folder),
            train_dataset=train_set,
            data_collator=collate,
        )
        result = trainer.train()  # spent: imbalanced-data
    print(f"steps {result.global_step} seconds {result.metrics['train_runtime']:.1f}")
    print(f"final loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
