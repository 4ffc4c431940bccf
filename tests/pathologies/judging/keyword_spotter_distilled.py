"""A small keyword spotter learns from the scores of a large one."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, BANDS, FRAMES, KEYWORDS, HEAT = 70, 24, 40, 98, 12, 4.0


def spotter(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv1d(BANDS, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, KEYWORDS))


def distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Between the softened answers of both."""
    return F.kl_div((student / HEAT).log_softmax(1), (teacher / HEAT).softmax(1), reduction="batchmean") * HEAT**2


def answers(teacher: nn.Module, sounds: Tensor) -> Tensor:
    """What the student should say."""
    if FIXED:
        with torch.no_grad():
            return teacher(sounds)
    return teacher(sounds)  # spent: grad-in-evaluation # change: grad-in-evaluation


def main() -> None:
    torch.manual_seed(0)
    teacher, student = spotter(128, 3), spotter(32, 2)
    teacher.eval()
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3, fused=True)
    for step in range(STEPS):
        sounds, keywords = torch.randn(BATCH, BANDS, FRAMES), torch.randint(KEYWORDS, (BATCH,))
        wanted = answers(teacher, sounds)  # spent: grad-in-evaluation # change: grad-in-evaluation
        scores = student(sounds)
        loss = 0.7 * distance(scores, wanted) + 0.3 * F.cross_entropy(scores, keywords)
        optimizer.zero_grad()
        loss.backward()  # spent: grad-in-evaluation
        optimizer.step()
        if step % 20 == 0:
            print(f"{step}: {loss.item():.4f}")
    print(f"last {loss.item():.4f}")


if __name__ == "__main__":
    main()
