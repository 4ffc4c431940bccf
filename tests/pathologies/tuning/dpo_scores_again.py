"""Direct preference optimization by hand; the rewards that are reported come from another pass through the policy."""

import copy
import sys
from collections import defaultdict

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

FIXED = "--fixed" in sys.argv
BETA, PROMPT, ANSWER, PAIRS, STEPS = 0.1, 16, 16, 4, 90


def answer_log_probs(model: GPT2LMHeadModel, ids: torch.Tensor) -> torch.Tensor:
    """Log probability of the answer, for each row."""
    logits = model(ids, use_cache=False).logits[:, PROMPT - 1 : -1]  # spent: unexpected-call-count
    return -F.cross_entropy(logits.transpose(1, 2), ids[:, PROMPT:], reduction="none").sum(1)


def preference_loss(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    chosen, rejected = (policy - reference).chunk(2)
    return -F.logsigmoid(BETA * (chosen - rejected)).mean()


@torch.no_grad()
def rewards(policy: torch.Tensor, reference: torch.Tensor) -> dict[str, torch.Tensor]:
    chosen, rejected = (BETA * (policy - reference)).chunk(2)
    return {
        "rewards/chosen": chosen.mean(),
        "rewards/rejected": rejected.mean(),
        "rewards/accuracy": (chosen > rejected).float().mean(),
    }


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        bos_token_id=0,
        eos_token_id=0,
        vocab_size=1000,
        n_positions=64,
        n_embd=128,
        n_layer=3,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    policy = GPT2LMHeadModel(config)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    prompts = torch.randint(1000, (STEPS, PAIRS, PROMPT))
    answers = torch.randint(1000, (2, STEPS, PAIRS, ANSWER))
    seen: dict[str, list[torch.Tensor]] = defaultdict(list)

    for step in range(STEPS):
        ids = torch.cat([torch.cat([prompts[step], answer[step]], dim=1) for answer in answers])
        with torch.no_grad():
            of_reference = answer_log_probs(reference, ids)
        of_policy = answer_log_probs(policy, ids)
        loss = preference_loss(of_policy, of_reference)
        if FIXED:
            numbers = rewards(of_policy, of_reference)
        else:
            with torch.no_grad():
                again = answer_log_probs(policy, ids)  # spent: unexpected-call-count # change: unexpected-call-count
                numbers = rewards(again, answer_log_probs(reference, ids))  # change: unexpected-call-count
        for name, value in numbers.items():
            seen[name].append(value)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    print({name: round(torch.stack(values).mean().item(), 3) for name, values in seen.items()})


if __name__ == "__main__":
    main()
