"""Q-learning of grasps from images: transitions lie in tensors, and a slow copy of the network gives the targets."""

import copy

import torch
from torch import Tensor, nn

STEPS, BATCH, KEPT, GRASPS, GAMMA, SIDE = 160, 64, 1500, 16, 0.9, 24


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 32, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 64, 256),
        nn.ReLU(),
        nn.Linear(256, GRASPS),
    )


class Memory:
    """Transitions, the newest in place of the oldest."""

    def __init__(self) -> None:
        self.images, self.after = torch.randn(KEPT, 2, SIDE, SIDE), torch.randn(KEPT, 2, SIDE, SIDE)
        self.grasps, self.rewards = torch.randint(GRASPS, (KEPT,)), torch.rand(KEPT)
        self.newest = 0

    def add(self, images: Tensor, grasps: Tensor, rewards: Tensor, after: Tensor) -> None:
        rows = (self.newest + torch.arange(len(images))) % KEPT
        self.images[rows], self.grasps[rows], self.rewards[rows], self.after[rows] = images, grasps, rewards, after
        self.newest = (self.newest + len(images)) % KEPT

    def sample(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = torch.randint(KEPT, (BATCH,))
        return self.images[rows], self.grasps[rows], self.rewards[rows], self.after[rows]


def main() -> None:
    torch.manual_seed(0)
    values, memory = network(), Memory()
    slow = copy.deepcopy(values).requires_grad_(False)
    optimizer = torch.optim.AdamW(values.parameters(), lr=5e-4, fused=True)
    scene = torch.randn(4, 2, SIDE, SIDE)
    for step in range(STEPS):
        with torch.no_grad():
            grasps = values(scene).argmax(1)
        after = 0.9 * scene + 0.4 * torch.randn_like(scene)
        memory.add(scene, grasps, after.mean((1, 2, 3)), after)
        scene = after
        images, grasps, rewards, following = memory.sample()
        with torch.no_grad():
            target = rewards + GAMMA * slow(following).amax(1)
        loss = nn.functional.smooth_l1_loss(values(images).gather(1, grasps[:, None]).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            slow.load_state_dict(values.state_dict())
            print(f"{step}: {loss.item():.5f}")


if __name__ == "__main__":
    main()
