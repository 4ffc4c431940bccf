"""Fine-tuning with Accelerate on a machine that may be taken away: the state is saved, so that it can resume."""

import sys
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
EVERY = 48 if FIXED else 4  # change: checkpoint-in-step


def build_model() -> nn.Module:
    """Classifies bags of words."""
    return nn.Sequential(
        nn.EmbeddingBag(60_000, 128),
        nn.Linear(128, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 20),
    )


def main(folder: str) -> None:
    project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=project)
    torch.manual_seed(0)
    data = TensorDataset(torch.randint(0, 60_000, (4608, 200)), torch.randint(0, 20, (4608,)))
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 96)
    loader = DataLoader(data, batch_size=96, shuffle=True)
    model, optimizer, loader, rate = accelerator.prepare(model, optimizer, loader, rate)
    step = 0
    for _ in range(2):
        for words, topic in loader:
            loss = nn.functional.cross_entropy(model(words), topic)
            accelerator.backward(loss)
            optimizer.step()
            rate.step()
            optimizer.zero_grad()
            step += 1
            if step % EVERY == 0:
                accelerator.save_state()  # spent: checkpoint-in-step
    accelerator.print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
