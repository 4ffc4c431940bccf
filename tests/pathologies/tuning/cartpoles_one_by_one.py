"""An actor and a critic on 64 gymnasium carts; the carts are stepped one after another, in Python."""

import sys

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
CARTS, TICKS, UPDATES, DISCOUNT = 64, 8, 200, 0.99


class ActorCritic(nn.Module):
    """Scores of the two pushes, and what the state is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh())
        self.actor, self.critic = nn.Linear(192, 2), nn.Linear(192, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(states)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def make_carts() -> gymnasium.vector.VectorEnv:
    """All the carts as one environment."""
    if FIXED:
        return gymnasium.make_vec("CartPole-v1", num_envs=CARTS, vectorization_mode="vector_entry_point")
    return gymnasium.make_vec(  # change: python-bound
        "CartPole-v1",
        num_envs=CARTS,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
    )


def main() -> None:
    torch.manual_seed(0)
    carts = make_carts()
    net = ActorCritic()
    optimizer = torch.optim.Adam(net.parameters(), lr=7e-4, fused=True)
    state, _ = carts.reset(seed=0)
    lengths = np.zeros(CARTS)
    finished: list[float] = []
    for _update in range(UPDATES):
        states = torch.empty(TICKS + 1, CARTS, 4)
        pushes = torch.empty(TICKS, CARTS, dtype=torch.long)
        rewards, alive = torch.empty(TICKS, CARTS), torch.empty(TICKS, CARTS)
        states[0] = torch.from_numpy(state)
        for tick in range(TICKS):
            with torch.no_grad():
                scores, _ = net(states[tick])
                pushes[tick] = torch.multinomial(scores.softmax(1), 1).squeeze(1)
            after = carts.step(pushes[tick].numpy())  # spent: python-bound # change: python-bound
            state, reward, ended, cut, _ = after
            states[tick + 1] = torch.from_numpy(state)
            rewards[tick] = torch.from_numpy(reward)
            over = ended | cut
            alive[tick] = torch.from_numpy(~over)
            lengths += 1
            finished.extend(lengths[over])
            lengths[over] = 0

        scores, worth = net(states)
        target = torch.empty(TICKS, CARTS)
        value = worth[-1].detach()
        for tick in reversed(range(TICKS)):
            value = rewards[tick] + DISCOUNT * alive[tick] * value
            target[tick] = value
        advantage = target - worth[:-1]
        logs = scores[:-1].log_softmax(-1)
        chosen = logs.gather(2, pushes[..., None]).squeeze(2)
        entropy = -(logs.exp() * logs).sum(-1).mean()
        loss = -(chosen * advantage.detach()).mean() + 0.5 * advantage.square().mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    carts.close()
    print(f"{len(finished)} episodes, the last 20 of {np.mean(finished[-20:]):.0f} ticks")


if __name__ == "__main__":
    main()
