"""A Hugging Face Trainer with save_steps as small as in the first trial."""

import sys
import tempfile

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv


def main(folder: str) -> None:
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=8000, dim=128, n_layers=2, n_heads=4, hidden_dim=256, max_position_embeddings=64
    )
    model = DistilBertForSequenceClassification(config)
    tokens = torch.randint(0, 8000, (560, 32))
    data = [{"input_ids": row, "labels": number % 2} for number, row in enumerate(tokens)]
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=70,
        optim="adamw_torch_fused",
        max_grad_norm=0,
        save_strategy="steps",
        save_steps=1000 if FIXED else 4,  # change: checkpoint-in-step
        save_total_limit=1,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()  # spent: checkpoint-in-step


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
