"""A classifier of point clouds whose dataset computes the same geometry of each cloud again in each epoch."""

import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
CLOUDS, POINTS, NEIGHBORS, BATCH, EPOCHS = 240, 96, 8, 16, 12


def neighborhoods(points: np.ndarray) -> np.ndarray:
    """Each point with the offsets and distances of its nearest neighbors."""
    rows = []
    for point in points:  # spent: input-bound
        offsets = points - point  # spent: input-bound
        distances = np.sqrt((offsets**2).sum(axis=1))  # spent: input-bound
        nearest = np.argsort(distances)[1 : NEIGHBORS + 1]  # spent: input-bound
        rows.append(np.concatenate([point, offsets[nearest].ravel(), distances[nearest]]))  # spent: input-bound
    return np.stack(rows).astype(np.float32)


class Clouds(Dataset):
    """Points on ellipsoids; the label is the longest axis."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        directions = rng.normal(size=(CLOUDS, POINTS, 3))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        axes = rng.uniform(0.5, 2.0, size=(CLOUDS, 1, 3))
        self.points, self.labels = directions * axes, axes[:, 0].argmax(axis=1)
        self.ready = [torch.from_numpy(neighborhoods(cloud)) for cloud in self.points] if FIXED else None

    def __len__(self) -> int:
        return CLOUDS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.ready is not None:
            return self.ready[index], int(self.labels[index])
        features = neighborhoods(self.points[index])  # change: input-bound
        return torch.from_numpy(features), int(self.labels[index])


class PointNet(nn.Module):
    """A network for each point, and the largest of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3 + 4 * NEIGHBORS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.head = nn.Linear(256, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.points(x).amax(dim=1))


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(Clouds(), batch_size=BATCH, shuffle=True)
    model = PointNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        seen = torch.zeros(())
        for x, labels in loader:
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += loss.detach()
        print(f"{epoch}: {seen.item() / len(loader):.3f}")


if __name__ == "__main__":
    main()
