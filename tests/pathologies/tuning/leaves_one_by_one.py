"""AlphaZero-style self-play for a board game: tree search with a policy-value network."""

from __future__ import annotations

import math
import random
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
BOARD = 7


class PolicyValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.Flatten()
        )
        self.policy = nn.Linear(128 * BOARD * BOARD, BOARD * BOARD)
        self.value = nn.Linear(128 * BOARD * BOARD, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.policy(h), torch.tanh(self.value(h))


class Node:
    def __init__(self, state: Tensor) -> None:
        self.state, self.visits, self.total = state, 1, 0.0
        self.children: dict[int, Node] = {}

    def worth(self, child: Node) -> float:
        return child.total / child.visits + math.sqrt(2 * math.log(self.visits + 1) / child.visits)


def select(root: Node) -> list[Node]:
    node, path = root, [root]
    while node.children and len(path) < 4:
        node = max(node.children.values(), key=node.worth)
        path.append(node)
    return path


def expand(paths: list[list[Node]], net: PolicyValue) -> None:
    if FIXED:
        logits, values = net(torch.stack([p[-1].state for p in paths]))
        answers = list(zip(logits, values, strict=True))
    else:
        answers = []
        for p in paths:  # spent: loop-over-samples # change: loop-over-samples
            logits, value = net(p[-1].state[None])  # spent: loop-over-samples # change: loop-over-samples
            answers.append((logits[0], value[0]))
    taken = torch.stack([p[-1].state for p in paths]).sum(1).flatten(1) > 0
    best = torch.stack([logits for logits, _ in answers]).masked_fill(taken, -math.inf).topk(3).indices.tolist()
    for path, moves, (_, value) in zip(paths, best, answers, strict=True):
        leaf = path[-1]
        if not leaf.children:
            for move in moves:
                child = leaf.state.clone()
                child[random.randrange(2)].view(-1)[move] = 1
                leaf.children[move] = Node(child)
        v = float(value)
        for node in path:
            node.visits += 1
            node.total += v


@torch.no_grad()
def choose_moves(net: PolicyValue, states: list[Tensor]) -> list[int]:
    roots = [Node(state) for state in states]
    expand([[root] for root in roots], net)
    for _ in range(3):
        expand([select(root) for root in roots], net)
    return [max(root.children, key=lambda move: root.children[move].visits) for root in roots]


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    net = PolicyValue().eval()
    for game in range(8):
        states = [(torch.rand(2, BOARD, BOARD) < 0.1).float() for _ in range(24)]
        for turn in range(20):
            moves = choose_moves(net, states)
            states = [state.clone() for state in states]
            for state, move in zip(states, moves, strict=True):
                state[turn % 2].view(-1)[move] = 1
        print("game", game, "stones", sum(int(state.sum()) for state in states))


if __name__ == "__main__":
    main()
