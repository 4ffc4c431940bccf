"""Summaries with the Hugging Face Trainer: ROUGE-L of the greedy predictions after each epoch, computed at home."""

import sys
import tempfile

import numpy as np
import torch
from transformers import EvalPrediction, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv
WORDS, LENGTH = 120, 192


def common(first: list[int], second: list[int]) -> int:
    """Length of the longest common subsequence."""
    if FIXED:
        return common_by_bits(first, second)
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first, start=1):
        for j, b in enumerate(second, start=1):  # spent: python-bound # change: python-bound
            table[i][j] = (  # spent: python-bound # change: python-bound
                table[i - 1][j - 1] + 1 if a == b else max(table[i - 1][j], table[i][j - 1])
            )
    return table[-1][-1]


def common_by_bits(first: list[int], second: list[int]) -> int:
    """The same with the bits of an integer as a row of the table (Hyyrö, 2004)."""
    places: dict[int, int] = {}
    for i, a in enumerate(first):
        places[a] = places.get(a, 0) | 1 << i
    full = (1 << len(first)) - 1
    row = full
    for b in second:
        matched = row & places.get(b, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(first) - row.bit_count()


def rouge(prediction: EvalPrediction) -> dict[str, float]:
    """Mean F1 of the longest common subsequences."""
    scores = []
    for said, wanted in zip(prediction.predictions, prediction.label_ids, strict=True):
        length = common(said.tolist(), wanted.tolist())  # change: python-bound
        scores.append(2 * length / (len(said) + len(wanted)))
    return {"rouge_l": float(np.mean(scores))}


torch.manual_seed(0)
tokens = torch.randint(0, WORDS, (520, LENGTH))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=1, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=40,
        num_train_epochs=3,
        optim="adamw_torch_fused",
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data[:400],
        eval_dataset=data[400:],
        compute_metrics=rouge,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )
    trainer.train()
