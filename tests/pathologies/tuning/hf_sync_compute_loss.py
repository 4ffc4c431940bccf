"""A Hugging Face Trainer whose compute_loss keeps each loss as a number."""

import sys
import tempfile

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv


class LossKeeper(Trainer):
    """Remembers every loss, to draw the curve later."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.curve: list[float | Tensor] = []

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Tensor], *args: object, **kwargs: object
    ) -> Tensor:
        loss = model(**inputs).loss
        if FIXED:
            self.curve.append(loss.detach())
        else:
            self.curve.append(loss.item())  # spent: sync-in-step  # change: sync-in-step
        return loss


torch.manual_seed(0)
tokens = torch.randint(0, 200, (560, 32))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=32, n_embd=64, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=70,
        optim="sgd",
        max_grad_norm=0,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    keeper = LossKeeper(model=model, args=arguments, train_dataset=data)
    keeper.train()
print(len(keeper.curve), float(keeper.curve[-1]))
