"""Distillation: the teacher is asked with gradients enabled, and nothing trains it."""

import contextlib
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, CLASSES = 90, 64, 100


class Distillation:
    def __init__(self) -> None:
        self.teacher = nn.Sequential(
            nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, CLASSES)
        )
        self.student = nn.Sequential(nn.Linear(256, 192), nn.ReLU(), nn.Linear(192, CLASSES))
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.02)

    def loss(self, x: Tensor) -> Tensor:
        with torch.no_grad() if FIXED else contextlib.nullcontext():
            wanted = self.teacher(x)  # spent: unused-gradients # change: unused-gradients
        answers = self.student(x).log_softmax(1)
        return nn.functional.kl_div(answers, wanted.softmax(1), reduction="batchmean")


def main() -> None:
    torch.manual_seed(0)
    run = Distillation()
    examples = torch.randn(STEPS * BATCH, 256)
    for x in examples.split(BATCH):
        loss = run.loss(x)
        run.optimizer.zero_grad()
        loss.backward()  # spent: unused-gradients
        run.optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
