"""Summaries are generated in batches with a cache of keys and values, one new token per call."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCHES, BATCH, PROMPT, NEW = 3, 48, 64, 32


@torch.inference_mode()
def generate(model: GPT2LMHeadModel, prompts: torch.Tensor) -> torch.Tensor:
    """The NEW most likely tokens after each prompt."""
    written = torch.empty(len(prompts), NEW, dtype=torch.long)
    ids, cache = prompts, None
    for place in range(NEW):
        out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        ids = out.logits[:, -1:].argmax(-1)
        written[:, place] = ids[:, 0]
    return written


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        bos_token_id=0, eos_token_id=0, vocab_size=2000, n_positions=PROMPT + NEW, n_embd=384, n_layer=3, n_head=6
    )
    model = GPT2LMHeadModel(config).eval()
    for prompts in torch.randint(2000, (BATCHES, BATCH, PROMPT)):
        print(generate(model, prompts).unique().numel(), "different tokens")


if __name__ == "__main__":
    main()
