"""Momentum contrast: a query and a key encoder, a queue of keys that is overwritten in place, an average by foreach."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, WIDTH, QUEUE, STEPS = 32, 64, 1024, 100


def encoder() -> nn.Sequential:
    """A small convolutional network with a projection."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 256),
        nn.ReLU(inplace=True),
        nn.Linear(256, WIDTH),
    )


def view(images: Tensor) -> Tensor:
    """A flip and a gain, drawn for the whole batch at once."""
    flipped = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)
    return flipped * (0.8 + 0.4 * torch.rand(len(images), 1, 1, 1))


class Contrast(nn.Module):
    """The query encoder, its slow copy, and the keys of the last batches."""

    def __init__(self) -> None:
        super().__init__()
        self.query = encoder()
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(QUEUE, WIDTH), dim=1))
        self.next = 0

    @torch.no_grad()
    def follow(self) -> None:
        """Move the key encoder towards the query encoder."""
        torch._foreach_lerp_(list(self.key.parameters()), list(self.query.parameters()), 0.01)

    @torch.no_grad()
    def remember(self, keys: Tensor) -> None:
        """Overwrite the oldest keys."""
        self.queue[self.next : self.next + len(keys)] = keys
        self.next = (self.next + len(keys)) % QUEUE

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        queries = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            keys = F.normalize(self.key(other), dim=1)
        same = (queries * keys).sum(1, keepdim=True)
        logits = torch.cat([same, queries @ self.queue.T.clone()], dim=1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        self.remember(keys)
        return loss


def main() -> None:
    torch.manual_seed(0)
    images = torch.randn(512, 3, 32, 32)
    model = Contrast()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9)
    for step in range(STEPS):
        rows = torch.randint(0, len(images), (BATCH,))
        loss = model(view(images[rows]), view(images[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.follow()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
