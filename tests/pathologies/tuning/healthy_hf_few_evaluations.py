"""A Hugging Face Trainer that evaluates once in a while, on few batches."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
tokens = torch.randint(0, 200, (640, 64))
data = [{"input_ids": row, "labels": row} for row in tokens]
# "gelu_new", the default, is the same function in eight ops.
config = {"n_embd": 128, "n_layer": 2, "n_head": 2, "activation_function": "gelu_pytorch_tanh"}
model = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=64, **config))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_steps=80,
        optim="sgd",
        max_grad_norm=0,
        eval_strategy="steps",
        eval_steps=40,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16]).train()
