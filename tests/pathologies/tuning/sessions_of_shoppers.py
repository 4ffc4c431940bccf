"""A transformer predicts from a shopper's session whether something is bought."""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv


class Sessions(Dataset):
    """Lists of viewed items; most of them are short."""

    def __init__(self, count: int, items: int) -> None:
        length = (4 + torch.rand(count).pow(4) * 60).long()
        self.views = [torch.randint(1, items, (int(size),)) for size in length]

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, number: int) -> tuple[Tensor, float]:
        views = self.views[number]
        return views, float(views[-1] % 2)


@dataclass
class Pad:
    """Makes one tensor of a batch's sessions, of a given length or of the longest one's."""

    length: int | None = None

    def __call__(self, batch: list[tuple[Tensor, float]]) -> tuple[Tensor, Tensor]:
        sessions, bought = zip(*batch, strict=True)
        length = self.length or max(len(views) for views in sessions)
        padded = torch.zeros(len(batch), length, dtype=torch.long)  # change: padding-wasted
        for row, views in zip(padded, sessions, strict=True):
            row[: len(views)] = views
        return padded, torch.tensor(bought)


class SameLength:
    """Batches of sessions of about the same length, in random order."""

    def __init__(self, sessions: Sessions, batch: int) -> None:
        order = torch.tensor([len(views) for views in sessions.views]).argsort()
        self.batches = [rows.tolist() for rows in order.split(batch)]

    def __iter__(self):
        for number in torch.randperm(len(self.batches)).tolist():
            yield self.batches[number]

    def __len__(self) -> int:
        return len(self.batches)


class Buyer(nn.Module):
    """Two layers of attention, and the mean over what is no padding."""

    def __init__(self, items: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(items, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(width, 1)

    def forward(self, views: Tensor) -> Tensor:
        padding = views == 0
        hidden = self.body(self.embed(views), src_key_padding_mask=padding)  # spent: padding-wasted
        known = ~padding.unsqueeze(2)
        return self.score((hidden * known).sum(1) / known.sum(1)).squeeze(1)  # spent: padding-wasted


def loader(sessions: Sessions, batch: int) -> DataLoader:
    """Batches of about the same length."""
    pad = Pad() if FIXED else Pad(length=64)  # change: padding-wasted
    return DataLoader(sessions, batch_sampler=SameLength(sessions, batch), collate_fn=pad)  # change: padding-wasted


def train(epochs: int) -> float:
    """The mean loss of the last epoch."""
    sessions, buyer = Sessions(800, 400), Buyer(400)
    batches = loader(sessions, 16)
    optimizer = torch.optim.SGD(buyer.parameters(), lr=0.05)
    for _ in range(epochs):
        losses = []
        for views, bought in batches:
            loss = nn.functional.binary_cross_entropy_with_logits(buyer(views), bought)  # spent: padding-wasted
            optimizer.zero_grad()
            loss.backward()  # spent: padding-wasted
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def main() -> None:
    torch.manual_seed(0)
    print(f"loss {train(8):.4f}")


if __name__ == "__main__":
    main()
