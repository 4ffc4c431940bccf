"""Fine-tuning with Accelerate: gradients of four batches per update, clipping, warm-up, an average of the weights."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

ROWS, BATCH, LENGTH, ACCUMULATED, DECAY = 960, 4, 64, 4, 0.99


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    loader = DataLoader(TensorDataset(torch.randint(1000, (ROWS, LENGTH))), batch_size=BATCH, shuffle=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, 5, ROWS // BATCH // ACCUMULATED)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    weights = [weight.detach() for weight in model.parameters()]
    average = [weight.clone() for weight in weights]

    model.train()
    total = torch.zeros(())
    for step, (ids,) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            total += loss.detach()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            torch._foreach_lerp_(average, weights, 1 - DECAY)
        if step % 40 == 39:
            accelerator.print(f"step {step + 1}: loss {total.item() / 40:.4f}")
            total.zero_()


if __name__ == "__main__":
    main()
