"""Support tickets: counts of patterns go into a small network that chooses the team."""

import importlib.util
import random
import re
import sys

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("numpy") is None:
    sys.exit("pip install torch numpy")

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
TICKETS, BATCH, EPOCHS, TEAMS = 1600, 64, 6, 6
WORDS = ["error", "refund", "invoice", "login", "crash", "slow", "payment", "order", "#4711", "2024-05-01", "$19.99"]
WORDS += ["anna@example.org", "please", "urgent"]
PATTERNS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"#\d+", r"\$\d+(\.\d\d)?", r"\d{4}-\d\d-\d\d", r"[\w.]+@[\w.]+\.\w+", r"\berrors?\b", r"\bcrash(es|ed)?\b",
        r"\b(log ?in|sign ?in|password)\b", r"\b(refund|money back)\b", r"\binvoices?\b", r"\bpay(ment|ed|ing)?\b",
        r"\bslow(er|ly)?\b", r"\b(urgent|asap|immediately)\b", r"\bplease\b", r"!+", r"\?+", r"\b[A-Z]{3,}\b",
    )
]  # fmt: skip


def features(tickets: list[str]) -> Tensor:
    """How often each pattern occurs in each ticket."""
    rows = [[len(pattern.findall(ticket)) for pattern in PATTERNS] for ticket in tickets]  # spent: cpu-preprocessing
    return torch.tensor(rows, dtype=torch.float32)


def write_tickets() -> list[str]:
    """Tickets of 20 to 60 words."""
    chance = random.Random(5)
    return [" ".join(chance.choices(WORDS, k=chance.randint(20, 60))) for _ in range(TICKETS)]


def main() -> None:
    torch.manual_seed(0)
    tickets = write_tickets()
    teams = torch.tensor([len(ticket) % TEAMS for ticket in tickets])
    counts = features(tickets) if FIXED else torch.empty(0)
    hidden = [nn.Linear(len(PATTERNS), 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(512, TEAMS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(EPOCHS):
        right = 0.0
        for rows in torch.randperm(TICKETS).split(BATCH):
            batch = [tickets[row] for row in rows.tolist()]
            x = counts[rows] if FIXED else features(batch)  # spent: cpu-preprocessing # change: cpu-preprocessing
            scores: Tensor = model(x)
            loss = nn.functional.cross_entropy(scores, teams[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (scores.argmax(1) == teams[rows]).float().sum().item()
        print(f"epoch {epoch}: loss {loss.item():.4f}, right {right / TICKETS:.3f}")


if __name__ == "__main__":
    main()
