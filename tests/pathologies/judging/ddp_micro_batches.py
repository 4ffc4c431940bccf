"""Two processes train with DistributedDataParallel; the gradients of four micro-batches make an update."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FIXED = "--fixed" in sys.argv
MICRO = 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(11_520, 256), torch.randint(0, 10, (11_520,)))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    net = nn.Sequential(
        nn.Linear(256, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 512), nn.Linear(512, 10)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    for number, (x, y) in enumerate(loader, start=1):
        last = number % MICRO == 0
        with contextlib.nullcontext() if last or not FIXED else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y) / MICRO
            loss.backward()  # spent: exposed-communication # change: exposed-communication
        if last:
            optimizer.step()
            optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
