"""Two processes train a classifier of sounds; the first one reports how it ranks the classes."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

FIXED = "--fixed" in sys.argv
STEPS, BATCH, CLASSES, FRAMES = 90, 96, 500, 32


def mean_rank(scores: Tensor, truth: Tensor) -> float:
    """At which place the right class stands, in the mean."""
    if FIXED:
        right = scores.gather(1, truth[:, None])
        return float((scores > right).sum(1).float().mean()) + 1
    places = 0
    for row, label in zip(scores.tolist(), truth.tolist(), strict=True):  # spent: python-bound # change: python-bound
        order = sorted(range(CLASSES), key=lambda one: -row[one])  # spent: python-bound # change: python-bound
        for place, one in enumerate(order, start=1):  # spent: python-bound # change: python-bound
            if one == label:  # spent: python-bound # change: python-bound
                places += place
    return places / len(truth)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(32, 48, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(48, 48, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(192, CLASSES),
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(20 + rank)
    for step in range(STEPS):
        sounds = torch.randn(BATCH, 32, FRAMES, generator=generator)
        truth = torch.randint(CLASSES, (BATCH,), generator=generator)
        scores = model(sounds)
        loss = nn.functional.cross_entropy(scores, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            place = mean_rank(scores.detach(), truth)  # spent: python-bound # change: python-bound
            if step % 20 == 0:
                print(f"{step}: loss {loss.item():.4f}, mean rank {place:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
