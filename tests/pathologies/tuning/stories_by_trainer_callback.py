"""A small GPT-2 learns stories; a callback of the Trainer writes one now and then, to be read."""

import sys
import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

FIXED = "--fixed" in sys.argv
WORDS, LENGTH, STORIES, EVERY = 400, 64, 1_600, 25


class Stories(Dataset[dict[str, Tensor]]):
    """Random walks over words."""

    def __init__(self) -> None:
        self.steps = torch.randint(-3, 4, (STORIES, LENGTH)).cumsum(1).remainder(WORDS)

    def __len__(self) -> int:
        return STORIES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.steps[index], "labels": self.steps[index]}


class Storyteller(TrainerCallback):
    """Writes stories from the first words of some."""

    def __init__(self, begins: Tensor) -> None:
        self.begins = begins

    def on_step_end(self, args, state, control, model=None, **kwargs):  # type: ignore[no-untyped-def]
        if state.global_step % EVERY == 0:
            self.tell(model)  # spent: generation-without-cache

    @torch.no_grad()
    def tell(self, model: GPT2LMHeadModel) -> None:
        """Print how many words there are in the stories."""
        model.eval()
        told = model.generate(  # spent: generation-without-cache # change: generation-without-cache
            self.begins, max_new_tokens=100, min_new_tokens=100, do_sample=False, use_cache=FIXED, pad_token_id=0
        )
        model.train()
        print(told.numel())


def main() -> None:
    torch.manual_seed(0)
    stories = Stories()
    config = GPT2Config(
        vocab_size=WORDS, n_positions=160, n_embd=96, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            num_train_epochs=1,
            optim="adamw_torch_fused",
            logging_steps=100,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        teller = Storyteller(stories.steps[:4, :8])
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=stories, callbacks=[teller]).train()


if __name__ == "__main__":
    main()
