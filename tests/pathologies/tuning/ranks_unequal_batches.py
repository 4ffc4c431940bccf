"""Two processes train a speech model with DistributedDataParallel; most recordings are short, some long."""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
STEPS, BATCH, RANKS, FEATURES = 70, 8, 2, 40


class Recordings(Dataset[Tensor]):
    """Recordings of different lengths."""

    def __init__(self) -> None:
        count = STEPS * BATCH * RANKS
        self.frames = torch.where(torch.rand(count) < 0.2, 250, torch.randint(10, 20, (count,))).tolist()

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(self.frames[index], FEATURES)


def batches_of(rank: int, frames: list[int]) -> list[list[int]]:
    """The indices of each batch of a rank: recordings of similar length together, in random order."""
    order = sorted(range(len(frames)), key=frames.__getitem__)
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    if FIXED:
        pairs = torch.randperm(STEPS).tolist()
        return [batches[RANKS * pair + rank] for pair in pairs]
    shuffled = torch.randperm(len(batches)).tolist()
    return [batches[index] for index in shuffled[rank::RANKS]]  # change: imbalanced-data


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    data = Recordings()
    loader = DataLoader(
        data,
        batch_sampler=batches_of(rank, data.frames),
        collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True),
    )
    model = DistributedDataParallel(nn.GRU(FEATURES, 96, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for recording in loader:
        states, _ = model(recording)
        loss = states.square().mean()
        optimizer.zero_grad()
        loss.backward()  # spent: imbalanced-data
        optimizer.step()
    print(f"rank {rank} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
