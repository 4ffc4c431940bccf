"""REINFORCE: the loss of an episode is added up over its moves."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
EPISODES, MOVES, STATE, ACTIONS = 80, 200, 16, 6


def loss_of(chances: Tensor, returns: Tensor) -> Tensor:
    """The policy's loss over the moves of an episode."""
    if FIXED:
        return -(chances * returns).sum()
    loss = torch.zeros(())
    for chance, earned in zip(chances, returns, strict=True):  # spent: many-small-ops # change: many-small-ops
        loss = loss - chance * earned  # spent: many-small-ops # change: many-small-ops
    return loss


def main() -> None:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(STATE, 128), nn.Tanh(), nn.Linear(128, ACTIONS))
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
    for _ in range(EPISODES):
        states = torch.randn(MOVES, STATE)
        scores = policy(states).log_softmax(1)
        moves = (scores - torch.empty_like(scores).exponential_().log()).argmax(1, keepdim=True)
        rewards = (moves.squeeze(1) == states[:, :ACTIONS].argmax(1)).float()
        returns = rewards.flip(0).cumsum(0).flip(0)
        loss = loss_of(scores.gather(1, moves).squeeze(1), (returns - returns.mean()) / returns.std())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"reward {rewards.mean():.3f}")


if __name__ == "__main__":
    main()
