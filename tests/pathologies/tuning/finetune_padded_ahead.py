"""Messages are classified by a model that Trainer fine-tunes; all were padded to 96 tokens, most have twenty."""

import sys
import tempfile

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv
MAX_LENGTH, PAD = 96, 0
STEPS, BATCH = 90, 8


def encode(number: int, draw: np.random.Generator) -> dict[str, list[int] | int]:
    """One message as a tokenizer returns it."""
    length = int(draw.integers(8, 30))
    ids = draw.integers(1, 2000, length).tolist()
    if not FIXED:
        ids += [PAD] * (MAX_LENGTH - length)  # change: padding-wasted
    return {"input_ids": ids, "attention_mask": [int(word != PAD) for word in ids], "label": number % 3}


def collate(rows: list[dict[str, list[int] | int]]) -> dict[str, torch.Tensor]:
    """Pad to the longest row and stack."""
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(name: str) -> torch.Tensor:
        return torch.tensor([row[name] + [0] * (longest - len(row[name])) for row in rows])

    return {
        "input_ids": padded("input_ids"),
        "attention_mask": padded("attention_mask"),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def main() -> None:
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    data = [encode(number, draw) for number in range(STEPS * BATCH)]
    config = BertConfig(
        vocab_size=2000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=3e-4,
            warmup_steps=10,
            optim="adamw_torch_fused",
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate)
        trainer.train()  # spent: padding-wasted


if __name__ == "__main__":
    main()
