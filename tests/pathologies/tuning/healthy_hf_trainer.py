"""A Hugging Face Trainer on texts tokenized ahead, that logs and saves at the end."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def main(folder: str) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    tokens = torch.randint(0, 500, (60 * 16, 48))
    data = [{"input_ids": row, "labels": number % 2} for number, row in enumerate(tokens)]
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=16,
        max_steps=60,
        optim="adamw_torch_fused",
        max_grad_norm=0,
        logging_steps=30,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=data).train()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
