"""Proximal policy optimization on many CartPoles that are stepped together; each rollout serves sixteen updates."""

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

WORLDS, MOVES, ROUNDS, EPOCHS, BATCHES = 64, 16, 8, 4, 4


class ActorCritic(nn.Module):
    """A policy and the value of a state, from a shared trunk."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.actor = nn.Linear(width, 2)
        self.critic = nn.Linear(width, 1)

    def forward(self, state: Tensor) -> tuple[Categorical, Tensor]:
        features = self.trunk(state)
        return Categorical(logits=self.actor(features), validate_args=False), self.critic(features).squeeze(-1)


@torch.no_grad()
def rollout(envs: gym.vector.VectorEnv, model: ActorCritic, state: Tensor) -> tuple[list[Tensor], Tensor]:
    """States, actions, their log probabilities, returns and advantages; and the state after the last move."""
    kept: list[list[Tensor]] = [[], [], [], [], [], []]
    for _ in range(MOVES):
        policy, value = model(state)
        action = policy.sample()
        after, reward, terminated, truncated, _ = envs.step(action.numpy())
        going = 1 - torch.from_numpy(terminated | truncated).float()
        row = (state, action, policy.log_prob(action), value, torch.from_numpy(reward).float(), going)
        for column, one in zip(kept, row, strict=True):
            column.append(one)
        state = torch.from_numpy(after)
    states, actions, logs, values, rewards, goings = (torch.stack(column) for column in kept)
    following = torch.cat([values[1:], model(state)[1][None]])
    errors = rewards + 0.99 * following * goings - values
    advantages = torch.zeros_like(errors)
    later = torch.zeros(WORLDS)
    for t in reversed(range(MOVES)):
        later = errors[t] + 0.99 * 0.95 * goings[t] * later
        advantages[t] = later
    flat = [each.flatten(0, 1) for each in (states, actions, logs, advantages + values, advantages)]
    return flat, state


def main() -> None:
    torch.manual_seed(0)
    envs = gym.make_vec("CartPole-v1", num_envs=WORLDS, vectorization_mode="vector_entry_point")
    state = torch.from_numpy(envs.reset(seed=0)[0])
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    for _ in range(ROUNDS):
        data, state = rollout(envs, model, state)
        for _ in range(EPOCHS):
            for rows in torch.randperm(WORLDS * MOVES).chunk(BATCHES):
                states, actions, logs, targets, advantages = (each[rows] for each in data)
                policy, value = model(states)
                ratio = (policy.log_prob(actions) - logs).exp()
                scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                gain = torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
                loss = nn.functional.mse_loss(value, targets) - gain - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
