"""Distillation: a small network learns from a large one, on the same few batches in every epoch."""

import sys

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
EPOCHS, BATCHES, BATCH = 12, 8, 64


def main() -> None:
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(192, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)).eval()
    student = nn.Sequential(nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    images = list(torch.randn(BATCHES, BATCH, 192))
    known: dict[int, torch.Tensor] = {}
    for _ in range(EPOCHS):
        for number, x in enumerate(images):
            if not FIXED or number not in known:
                with torch.no_grad():
                    known[number] = teacher(x).softmax(1)  # spent: repeated-work # change: repeated-work
            loss = nn.functional.cross_entropy(student(x), known[number])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
