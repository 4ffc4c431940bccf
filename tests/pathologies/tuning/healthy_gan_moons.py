"""A generative adversarial network on points of two half moons: both networks take a step, one after the other."""

import math

import torch
from torch import Tensor, nn

STEPS, BATCH, NOISE = 200, 512, 16


def moons(count: int) -> Tensor:
    """Points on two half circles, with a little noise."""
    angle = torch.rand(count) * math.pi
    lower = torch.randint(2, (count,)).float()
    x = angle.cos() * (1 - 2 * lower) + lower
    y = angle.sin() * (1 - 2 * lower) + 0.5 * lower
    return torch.stack([x, y], dim=1) + 0.05 * torch.randn(count, 2)


def main() -> None:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(NOISE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    judge = nn.Sequential(
        nn.Linear(2, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)
    )
    by_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
    by_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
    softplus = nn.functional.softplus
    sums = torch.zeros(2)
    for step in range(1, STEPS + 1):
        made = maker(torch.randn(BATCH, NOISE))
        judged = judge(torch.cat([moons(BATCH), made.detach()]))
        judge_loss = softplus(-judged[:BATCH]).mean() + softplus(judged[BATCH:]).mean()
        by_judge.zero_grad()
        judge_loss.backward()
        by_judge.step()

        judge.requires_grad_(False)
        maker_loss = softplus(-judge(made)).mean()
        by_maker.zero_grad()
        maker_loss.backward()
        by_maker.step()
        judge.requires_grad_(True)

        sums += torch.stack([judge_loss.detach(), maker_loss.detach()])
        if step % 50 == 0:
            print(f"{step}: judge {sums[0].item() / 50:.3f}, maker {sums[1].item() / 50:.3f}")
            sums.zero_()


if __name__ == "__main__":
    main()
