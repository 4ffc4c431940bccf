"""Supervised fine-tuning with TRL on rows that are tokenized and packed ahead; it logs every 25 steps."""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS, LENGTH, STEPS, BATCH = 512, 96, 75, 4


def tokenizer() -> PreTrainedTokenizerFast:
    """Of WORDS numbered words."""
    words = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def main(folder: str) -> None:
    torch.manual_seed(0)
    rows = torch.randint(2, WORDS, (STEPS * BATCH, LENGTH)).tolist()
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
    arguments = SFTConfig(
        folder,
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        max_length=LENGTH,
        learning_rate=2e-4,
        optim="adamw_torch_fused",
        gradient_checkpointing=False,
        bf16=False,
        logging_steps=25,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=tokenizer(),
    )
    trainer.train()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
