"""Deep Q-learning on CartPole with stacked observations and a replay memory."""

import random
import sys
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import FrameStackObservation
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, WARMUP, BATCH, STACK, ACTIONS = 700, 300, 128, 8, 2

Transition = tuple[np.ndarray, int, float, np.ndarray, bool]


def to_tensors(transitions: list[Transition]) -> tuple[Tensor, ...]:
    """A batch of transitions, field by field."""
    before, actions, rewards, after, done = zip(*transitions, strict=True)
    if FIXED:
        before, after = np.array(before), np.array(after)
    return (
        torch.tensor(before, dtype=torch.float32),  # spent: cpu-preprocessing # change: cpu-preprocessing
        torch.tensor(actions),
        torch.tensor(rewards, dtype=torch.float32),
        torch.tensor(after, dtype=torch.float32),  # spent: cpu-preprocessing # change: cpu-preprocessing
        torch.tensor(done, dtype=torch.float32),
    )


def q_network() -> nn.Module:
    """Value of each action."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(4 * STACK, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, ACTIONS)
    )


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    env = FrameStackObservation(gym.make("CartPole-v1"), STACK)
    online, target = q_network(), q_network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4, fused=True)
    memory: deque[Transition] = deque(maxlen=10_000)
    state, _ = env.reset(seed=0)
    for step in range(STEPS + WARMUP):
        if random.random() < max(0.05, 1 - step / STEPS):
            action = random.randrange(ACTIONS)
        else:
            with torch.no_grad():
                action = int(online(torch.from_numpy(state)[None]).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        memory.append((state, action, float(reward), following, terminated))
        state = env.reset()[0] if terminated or truncated else following
        if step < WARMUP:
            continue
        before, actions, rewards, after, done = to_tensors(random.sample(memory, BATCH))
        with torch.no_grad():
            wanted = rewards + 0.99 * (1 - done) * target(after).amax(1)
        loss = nn.functional.smooth_l1_loss(online(before).gather(1, actions[:, None]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            target.load_state_dict(online.state_dict())
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
