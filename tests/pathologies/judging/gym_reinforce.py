"""REINFORCE on CartPole: some episodes are played with the current policy, then the policy is updated."""

import sys

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

FIXED = "--fixed" in sys.argv
UPDATES, EPISODES, LONGEST = 40, 12, 200


def returns(rewards: np.ndarray, discount: float = 0.99) -> np.ndarray:
    """Discounted sums of later rewards; time is the first dimension."""
    sums = np.zeros_like(rewards)
    later = np.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        later = rewards[t] + discount * later
        sums[t] = later
    return sums


@torch.no_grad()
def play(env: gym.Env, policy: nn.Module) -> tuple[list[np.ndarray], list[int], np.ndarray]:
    """One episode."""
    seen, taken, rewards = [], [], []
    observation, _ = env.reset()
    while len(rewards) < LONGEST:
        logits = policy(torch.as_tensor(observation))  # spent: loop-over-samples
        action = int(Categorical(logits=logits).sample())  # spent: loop-over-samples
        seen.append(observation)
        taken.append(action)
        observation, reward, terminated, truncated, _ = env.step(action)  # spent: loop-over-samples
        rewards.append(float(reward))
        if terminated or truncated:
            break
    return seen, taken, returns(np.array(rewards))


@torch.no_grad()
def play_together(envs: gym.vector.VectorEnv, policy: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """One episode in each environment, side by side."""
    seen, taken, rewards, alive = [], [], [], [np.ones(EPISODES, bool)]
    observations, _ = envs.reset()
    while alive[-1].any() and len(rewards) < LONGEST:
        actions = Categorical(logits=policy(torch.as_tensor(observations))).sample()
        seen.append(observations)
        taken.append(actions)
        observations, reward, terminated, truncated, _ = envs.step(actions.numpy())
        rewards.append(reward * alive[-1])
        alive.append(alive[-1] & ~terminated & ~truncated)
    kept = torch.as_tensor(np.array(alive[:-1]))
    found = torch.as_tensor(returns(np.array(rewards)), dtype=torch.float32)
    return torch.as_tensor(np.array(seen))[kept], torch.stack(taken)[kept], found[kept]


def rollout(policy: nn.Module, envs: gym.vector.VectorEnv, env: gym.Env) -> tuple[Tensor, Tensor, Tensor]:
    """Observations, actions and returns of some episodes."""
    if FIXED:
        return play_together(envs, policy)
    played = [play(env, policy) for _ in range(EPISODES)]  # spent: loop-over-samples # change: loop-over-samples
    seen, taken, found = zip(*played, strict=True)
    return (
        torch.as_tensor(np.concatenate(seen)),
        torch.tensor([action for episode in taken for action in episode]),
        torch.as_tensor(np.concatenate(found), dtype=torch.float32),
    )


def main() -> None:
    torch.manual_seed(0)
    env = gym.make("CartPole-v1")  # change: loop-over-samples
    envs = gym.make_vec("CartPole-v1", num_envs=EPISODES, vectorization_mode="vector_entry_point")
    env.reset(seed=0)
    envs.reset(seed=0)
    policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3, fused=True)
    for _ in range(UPDATES):
        seen, taken, found = rollout(policy, envs, env)
        advantage = (found - found.mean()) / (found.std() + 1e-8)
        loss = -(Categorical(logits=policy(seen)).log_prob(taken) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"moves per episode {len(found) / EPISODES:.0f}")


if __name__ == "__main__":
    main()
