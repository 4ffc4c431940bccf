"""A Hugging Face Trainer that also follows the accuracy of the next token during training."""

import sys
import tempfile

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv


class AccuracyTrainer(Trainer):
    """Keeps the share of tokens that were predicted right."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.right = torch.zeros(())

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Tensor], *args: object, **kwargs: object
    ) -> Tensor:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if not FIXED:
            with torch.no_grad():
                outputs = model(inputs["input_ids"])  # spent: unexpected-call-count # change: unexpected-call-count
        self.count(outputs["logits"].detach(), inputs["labels"])
        return loss

    def count(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch to the accuracy."""
        self.right += (logits[:, :-1].argmax(-1) == labels[:, 1:]).float().mean()


torch.manual_seed(0)
tokens = torch.randint(0, 200, (480, 64))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=64, n_embd=96, n_layer=3, n_head=4))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=60,
        optim="sgd",
        max_grad_norm=0,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = AccuracyTrainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
print(f"accuracy {float(trainer.right) / 60:.3f}")
