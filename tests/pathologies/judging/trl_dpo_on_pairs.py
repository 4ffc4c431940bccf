"""Direct preference optimization with TRL on tokenized pairs of answers, for some epochs."""

import copy
import sys
import tempfile

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

FIXED = "--fixed" in sys.argv
disable_progress_bars()


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words."""
    vocabulary = {word: code for code, word in enumerate(["<pad>", "<eos>", "<unk>", *map(str, range(300))])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def build_pairs(count: int) -> Dataset:
    """Questions, each with a better and a worse answer."""
    texts = {
        name: [" ".join(map(str, row)) for row in torch.randint(0, 300, (count, length)).tolist()]
        for name, length in {"prompt": 16, "chosen": 40, "rejected": 40}.items()
    }
    return Dataset.from_dict({name: [" " + text for text in rows] for name, rows in texts.items()})


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=303,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    max_position_embeddings=128,
    pad_token_id=0,
    eos_token_id=1,
)
policy = LlamaForCausalLM(config)
with tempfile.TemporaryDirectory() as folder:
    arguments = DPOConfig(
        folder,
        per_device_train_batch_size=4,
        num_train_epochs=5,
        learning_rate=1e-5,
        beta=0.1,
        max_length=64,
        precompute_ref_log_probs=FIXED,  # change: repeated-work
        optim="adamw_torch_fused",
        gradient_checkpointing=False,
        bf16=False,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = DPOTrainer(
        model=policy,
        ref_model=copy.deepcopy(policy),
        args=arguments,
        train_dataset=build_pairs(40),
        processing_class=build_tokenizer(),
    )
    trainer.train()  # spent: repeated-work
