"""Group-relative policy optimization with TRL; a judge behind a web service rates each completion."""

import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

FIXED = "--fixed" in sys.argv


class JudgeClient:
    """Asks the judge; a round trip and its answer take some hundredths of a second."""

    def __init__(self, latency: float) -> None:
        self.latency = latency

    def rate(self, text: str) -> float:
        """A grade from 0 to 1."""
        time.sleep(self.latency)  # spent: waiting-in-step
        return len(set(text.split())) / 16


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words."""
    vocabulary = {word: code for code, word in enumerate(["<pad>", "<eos>", "<unk>", *map(str, range(200))])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


judge = JudgeClient(0.015)
pool = ThreadPoolExecutor(8)


def graded(completions: list[str], **_: object) -> list[float]:
    """The judge's grades of a batch."""
    if FIXED:
        return list(pool.map(judge.rate, completions))
    return [judge.rate(text) for text in completions]  # spent: waiting-in-step # change: waiting-in-step


draw = random.Random(0)
torch.manual_seed(0)
prompts = [" ".join(str(draw.randrange(200)) for _ in range(8)) for _ in range(64)]
config = LlamaConfig(
    vocab_size=203,
    hidden_size=96,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=None,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = GRPOConfig(
        folder,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        max_steps=40,
        learning_rate=1e-5,
        optim="adamw_torch_fused",
        gradient_checkpointing=False,
        bf16=False,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=LlamaForCausalLM(config),
        reward_funcs=graded,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=build_tokenizer(),
    )
    trainer.train()
