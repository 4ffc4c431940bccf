"""Two processes over gloo, started by the script itself; each prints nothing but the first."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 8))
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, rank, shuffle=False)):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(repr(loss.item()), flush=True)
    dist.barrier()
    # Not by returning: at the end of a process torch's gloo aborts one time in eight ("terminate called without an
    # active exception"), with and without perfkit.
    os._exit(0)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        mp.spawn(work, args=(folder,), nprocs=2)
