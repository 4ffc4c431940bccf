"""A Hugging Face Trainer that evaluates during training."""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv

torch.manual_seed(0)
tokens = torch.randint(0, 200, (640, 32))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=32, n_embd=64, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_steps=80,
        optim="sgd",
        max_grad_norm=0,
        eval_strategy="steps",
        eval_steps=40 if FIXED else 5,  # change: validation-too-often
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:80])
    trainer.train()  # spent: validation-too-often
