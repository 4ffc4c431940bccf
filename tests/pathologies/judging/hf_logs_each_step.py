"""A Hugging Face Trainer that shows its loss at each step in TensorBoard and keeps a checkpoint at the end."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Highest(TrainerCallback):
    """Remembers the highest norm of the gradients."""

    def __init__(self) -> None:
        self.norm = 0.0

    def on_log(self, args: object, state: object, control: object, logs: dict[str, float], **kwargs: object) -> None:
        self.norm = max(self.norm, float(logs.get("grad_norm", 0.0)))


torch.manual_seed(0)
tokens = torch.randint(0, 1000, (400, 96))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=96, n_embd=192, n_layer=4, n_head=6))
highest = Highest()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=45,
        learning_rate=5e-4,
        optim="adamw_torch_fused",
        logging_steps=1,
        logging_first_step=True,
        save_strategy="no",
        report_to=["tensorboard"],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[highest])
    trainer.train()
    trainer.save_model()
print(f"highest norm {highest.norm:.2f}")
