"""Accelerate on a Hugging Face dataset of spoken commands, with convolutions over the waveform."""

import sys

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
COMMANDS, SAMPLES = 10, 16_000


def build_dataset(count: int) -> Dataset:
    """One second of sound for each command."""
    draw = np.random.default_rng(0)
    sound = draw.standard_normal((count, SAMPLES), dtype=np.float32)
    return Dataset.from_dict({"audio": list(sound), "command": draw.integers(0, COMMANDS, count)})


def collate(rows: list[dict[str, object]]) -> dict[str, Tensor]:
    """Rows as two tensors."""
    audio = torch.stack([torch.as_tensor(row["audio"], dtype=torch.float32) for row in rows])  # spent: input-bound
    return {"audio": audio, "command": torch.tensor([int(row["command"]) for row in rows])}


def build_model() -> nn.Module:
    """Convolutions, then the mean over time."""
    return nn.Sequential(
        nn.Conv1d(1, 48, 80, stride=16),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Conv1d(48, 64, 9, stride=4),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(64, COMMANDS),
    )


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    data = build_dataset(480)  # change: input-bound
    if FIXED:
        data = data.with_format("torch")
    loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate)  # change: input-bound
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(3):
        total = torch.zeros(())
        for batch in loader:  # spent: input-bound
            loss = nn.functional.cross_entropy(model(batch["audio"].unsqueeze(1)), batch["command"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        accelerator.print(f"epoch {epoch}: loss {total.item() / len(loader):.3f}")


if __name__ == "__main__":
    main()
