"""A recommender that ranks all items for the held-out users every 20 steps."""

import sys

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
USERS, ITEMS, WIDTH, BATCH, STEPS = 2000, 4000, 64, 2048, 160
HELD_OUT = 200 if FIXED else 1600  # change: validation-too-often


def recall(users: nn.Embedding, items: nn.Embedding, liked: torch.Tensor) -> float:
    """How often the item that a held-out user liked is among the first hundred."""
    found = 0
    with torch.no_grad():
        for user in range(HELD_OUT):  # spent: validation-too-often # change: validation-too-often
            scores = items.weight @ users.weight[user]  # spent: validation-too-often # change: validation-too-often
            found += int((scores > scores[liked[user]]).sum() < 100)  # spent: validation-too-often
    return found / HELD_OUT


def main() -> None:
    torch.manual_seed(0)
    users, items = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
    tower = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))
    optimizer = torch.optim.SGD([*users.parameters(), *items.parameters(), *tower.parameters()], lr=0.1)
    liked = torch.randint(ITEMS, (USERS,))
    for step in range(STEPS):
        who, what = torch.randint(USERS, (BATCH,)), torch.randint(ITEMS, (BATCH,))
        score = (tower(users(who)) * items(what)).sum(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, (liked[who] == what).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(step, recall(users, items, liked))  # spent: validation-too-often # change: validation-too-often
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
