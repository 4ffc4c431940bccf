"""Faces of the same person near each other: triplets with the hardest negative of the batch."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, PEOPLE, PICTURES, PIXELS, MARGIN = 90, 24, 4, 28, 0.3


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 49, 64),
        )

    def forward(self, faces: Tensor) -> Tensor:
        return nn.functional.normalize(self.net(faces), dim=1)


def triplet_loss(embedded: Tensor, people: Tensor) -> Tensor:
    """The farthest face of the same person against the nearest one of another."""
    distances = 1 - embedded @ embedded.T
    if FIXED:
        same = people[:, None] == people[None]
        far = distances.masked_fill(~same, -1).amax(1)
        near = distances.masked_fill(same, 3).amin(1)
        return (far - near + MARGIN).relu().mean()
    losses = []
    for row, person in zip(distances, people, strict=True):  # spent: many-small-ops # change: many-small-ops
        far = row[people == person].max()  # spent: many-small-ops # change: many-small-ops
        near = row[people != person].min()  # spent: many-small-ops # change: many-small-ops
        losses.append((far - near + MARGIN).relu())  # spent: many-small-ops # change: many-small-ops
    return torch.stack(losses).mean()


def gradient_norm(model: nn.Module) -> float:
    """Over all weights."""
    gradients = [weight.grad for weight in model.parameters()]
    if FIXED:
        return float(nn.utils.get_total_norm(gradients))
    return sum(gradient.norm().item() ** 2 for gradient in gradients) ** 0.5


def main() -> None:
    torch.manual_seed(0)
    model = Embedder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    looks = torch.randn(200, 1, PIXELS, PIXELS)
    for step in range(STEPS):
        people = torch.randperm(200)[:PEOPLE].repeat_interleave(PICTURES)
        faces = looks[people] + 0.7 * torch.randn(len(people), 1, PIXELS, PIXELS)
        loss = triplet_loss(model(faces), people)  # spent: many-small-ops
        optimizer.zero_grad()
        loss.backward()  # spent: many-small-ops
        norm = gradient_norm(model)
        optimizer.step()
        if step % 30 == 0:
            print(f"{step}: {loss.item():.4f}, gradient {norm:.3f}")
    print(f"last {loss.item():.4f}")


if __name__ == "__main__":
    main()
