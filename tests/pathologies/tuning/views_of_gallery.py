"""A network for pictures; now and then its answers are compared with a gallery, one query after the other."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, EVERY, BATCH, GALLERY, QUERIES = 240, 30, 48, 192, 12


def network() -> nn.Module:
    """Pictures of 24 x 24 to vectors."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3)),
        *(nn.Flatten(), nn.Linear(216, 32)),
    )


class Gallery:
    """Pictures of known classes."""

    def __init__(self, pictures: Tensor, classes: Tensor) -> None:
        self.pictures, self.classes = pictures, classes

    def vectors(self, model: nn.Module) -> Tensor:
        """The vectors of the gallery."""
        return F.normalize(model(self.pictures), dim=1)  # spent: rare-steps


def found_again(model: nn.Module, gallery: Gallery, queries: Tensor, classes: Tensor) -> float:
    """The share of queries whose nearest picture of the gallery is of their class."""
    right, vectors = 0, gallery.vectors(model) if FIXED else torch.empty(0)
    with torch.no_grad():
        for query, wanted in zip(queries.split(1), classes, strict=True):
            if not FIXED:
                vectors = gallery.vectors(model)  # spent: rare-steps # change: rare-steps
            nearest = (F.normalize(model(query), dim=1) @ vectors.T).argmax()
            right += int(gallery.classes[nearest] == wanted)
    return right / len(queries)


def main() -> None:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    gallery = Gallery(torch.randn(GALLERY, 1, 24, 24), torch.randint(8, (GALLERY,)))
    queries, classes = torch.randn(QUERIES, 1, 24, 24), torch.randint(8, (QUERIES,))
    for step in range(STEPS):
        pictures = torch.randn(BATCH, 1, 24, 24)
        vectors = F.normalize(model(pictures), dim=1)
        views = F.normalize(model(pictures + 0.1 * torch.randn_like(pictures)), dim=1)
        loss = F.cross_entropy(vectors @ views.T / 0.1, torch.arange(BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == EVERY - 1:
            share = found_again(model, gallery, queries, classes)
            print(f"step {step} loss {loss.item():.3f} found {share:.2f}")


if __name__ == "__main__":
    main()
