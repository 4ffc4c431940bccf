"""Reinforcement learning: no loader, many small forwards, the host reads each action."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
state, total = torch.randn(4), 0.0
for _ in range(40):
    chosen, rewards = [], []
    for _ in range(10):
        actions = torch.distributions.Categorical(logits=policy(state))
        action = actions.sample()
        chosen.append(actions.log_prob(action))
        rewards.append(1.0 if action.item() == 0 else 0.0)
        state = torch.tanh(state + 0.1 * torch.randn(4))
    loss = -(torch.stack(chosen) * torch.tensor(rewards)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += sum(rewards)
print(total, repr(loss.item()))
