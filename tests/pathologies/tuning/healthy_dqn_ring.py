"""Q-learning on one gymnasium cart: transitions go to a ring of tensors, and each tick is followed by one update."""

import copy
import random

import gymnasium
import torch
from torch import Tensor, nn

TICKS, WARMUP, BATCH, SIZE, COPY_EVERY, DISCOUNT = 500, 150, 256, 20_000, 100, 0.99


class Ring:
    """The last SIZE transitions."""

    def __init__(self) -> None:
        self.states, self.after = torch.empty(SIZE, 4), torch.empty(SIZE, 4)
        self.pushes = torch.empty(SIZE, dtype=torch.long)
        self.rewards, self.alive = torch.empty(SIZE), torch.empty(SIZE)
        self.seen = 0

    def add(self, state: Tensor, push: int, reward: float, after: Tensor, *, ended: bool) -> None:
        """Store one transition over the oldest."""
        at = self.seen % SIZE
        self.states[at], self.after[at] = state, after
        self.pushes[at], self.rewards[at], self.alive[at] = push, reward, float(not ended)
        self.seen += 1

    def sample(self) -> tuple[Tensor, ...]:
        """A batch of them."""
        rows = torch.randint(min(self.seen, SIZE), (BATCH,))
        return self.states[rows], self.pushes[rows], self.rewards[rows], self.after[rows], self.alive[rows]


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    cart = gymnasium.make("CartPole-v1")
    q = nn.Sequential(nn.Linear(4, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 2))
    slow = copy.deepcopy(q).requires_grad_(False)
    optimizer = torch.optim.Adam(q.parameters(), lr=5e-4, fused=True)
    ring, episodes = Ring(), 0
    state = torch.from_numpy(cart.reset(seed=0)[0])
    for tick in range(TICKS):
        if random.random() < max(0.05, 1 - tick / 300):
            push = random.randrange(2)
        else:
            with torch.no_grad():
                push = int(q(state).argmax())
        seen, reward, ended, cut, _ = cart.step(push)
        after = torch.from_numpy(seen)
        ring.add(state, push, float(reward), after, ended=ended)
        state = after
        if ended or cut:
            state = torch.from_numpy(cart.reset()[0])
            episodes += 1
        if tick < WARMUP:
            continue
        states, pushes, rewards, later, alive = ring.sample()
        with torch.no_grad():
            best = slow(later).gather(1, q(later).argmax(1, keepdim=True)).squeeze(1)
        guess = q(states).gather(1, pushes[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(guess, rewards + DISCOUNT * alive * best)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if tick % COPY_EVERY == 0:
            slow.load_state_dict(q.state_dict())
    print(f"{episodes} episodes, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
