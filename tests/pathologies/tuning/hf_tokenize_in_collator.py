"""A Hugging Face Trainer whose collator tokenizes every text again, each time it is seen."""

import random
import sys
import tempfile

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv
LENGTH = 64
PIECES = {
    piece: code for code, piece in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz", "ing", "er", "th"])
}


def tokenize(text: str) -> list[int]:
    """Longest piece first, as WordPiece does; padded to LENGTH."""
    codes: list[int] = []
    for word in text.split():
        start = 0
        while start < len(word):
            end = len(word)
            while end > start and word[start:end] not in PIECES:  # spent: cpu-preprocessing
                end -= 1  # spent: cpu-preprocessing
            codes.append(PIECES.get(word[start:end], 1))
            start = max(end, start + 1)
    return (codes + [0] * LENGTH)[:LENGTH]


def collate(texts: list[dict[str, object]]) -> dict[str, Tensor]:
    """Token codes and labels of one batch."""
    codes = [
        one["codes"] if FIXED else tokenize(str(one["text"])) for one in texts
    ]  # spent: cpu-preprocessing  # change: cpu-preprocessing
    return {"input_ids": torch.tensor(codes), "labels": torch.tensor([one["label"] for one in texts])}


draw, WORDS = random.Random(0), ("anotherthinking", "remotercomputering", "thinkingremoter", "computeringanother")
texts = [{"text": " ".join(draw.choices(WORDS, k=80)), "label": number % 2} for number in range(160)]
if FIXED:
    texts = [{"codes": tokenize(str(one["text"])), "label": one["label"]} for one in texts]
torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(vocab_size=40, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=16,
        max_steps=70,
        optim="sgd",
        max_grad_norm=0,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=True,
    )
    Trainer(model=model, args=arguments, train_dataset=texts, data_collator=collate).train()
