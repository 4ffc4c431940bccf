"""A small GPT-2 trained by the Hugging Face Trainer with the arguments of a recipe for a large one."""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv

torch.manual_seed(0)
tokens = torch.randint(0, 800, (352, 64))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=800, n_positions=64, n_embd=128, n_layer=4, n_head=4))
model.config.use_cache = False
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        activation_checkpointing=not FIXED,  # change: unexpected-call-count
        max_steps=44,
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        optim="adamw_torch_fused",
        weight_decay=0.1,
        max_grad_norm=1.0,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    result = trainer.train()  # spent: unexpected-call-count
print(f"loss {result.training_loss:.3f}")
