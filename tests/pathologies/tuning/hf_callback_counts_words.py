"""A Hugging Face Trainer with a callback that follows how often the model would say each word."""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

FIXED = "--fixed" in sys.argv
WORDS, LENGTH, STEPS = 200, 32, 70


class WordCounts(TrainerCallback):
    """Counts the words that the model finds most likely after each one."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.totals = torch.zeros(WORDS, dtype=torch.long)

    @torch.no_grad()
    def on_step_end(self, *args: object, model: GPT2LMHeadModel, **options: object) -> None:
        words = model.transformer.wte.weight
        likely = (words @ words.T).topk(120).indices
        if FIXED:
            ones = torch.ones(likely.numel(), dtype=torch.long)
            self.totals.scatter_add_(0, likely.flatten(), ones)
            return
        for row in likely.tolist():  # spent: python-bound # change: python-bound
            for word in row:  # spent: python-bound # change: python-bound
                self.counts[word] = self.counts.get(word, 0) + 1  # spent: python-bound # change: python-bound


torch.manual_seed(0)
tokens = torch.randint(0, WORDS, (STEPS * 4, LENGTH))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2))
counter = WordCounts()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        max_steps=STEPS,
        optim="sgd",
        max_grad_norm=0,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[counter]).train()
print(max(counter.counts.values(), default=int(counter.totals.max())))
