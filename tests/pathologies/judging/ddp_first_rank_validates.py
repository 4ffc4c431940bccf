"""Two processes train with DistributedDataParallel; now and then the held-out data is evaluated."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FIXED = "--fixed" in sys.argv
EVERY = 32 if FIXED else 8  # change: slow-rank


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean loss."""
    model.eval()
    losses = [
        nn.functional.cross_entropy(model(some), wanted)
        for some, wanted in zip(x.split(256), y.split(256), strict=True)  # spent: slow-rank
    ]
    model.train()
    return torch.stack(losses).mean()


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = torch.randn(12_288 + 8_192, 128), torch.randint(0, 10, (12_288 + 8_192,))
    data, held_out, wanted = TensorDataset(x[:12_288], y[:12_288]), x[12_288:], y[12_288:]
    loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step, (some, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(some), labels)
        optimizer.zero_grad()
        loss.backward()  # spent: slow-rank
        optimizer.step()
        if step % EVERY == EVERY - 1:
            if FIXED:
                found = evaluate(model.module, held_out[rank::ranks], wanted[rank::ranks])
                dist.all_reduce(found)
                found /= ranks
            elif rank == 0:  # change: slow-rank
                found = evaluate(model.module, held_out, wanted)  # spent: slow-rank # change: slow-rank
            if rank == 0:
                print(f"step {step + 1}: {found.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
