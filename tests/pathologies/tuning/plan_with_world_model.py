"""Planning by the cross-entropy method: a learned model of the world plays out candidate plans."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STATE, ACTION, CANDIDATES, HORIZON, ROUNDS, MOVES = 12, 3, 24, 8, 2, 150


class World(nn.Module):
    """The next state from a state and an action."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATE + ACTION, 96), nn.SiLU(), nn.Linear(96, STATE))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return state + self.net(torch.cat([state, action], dim=-1))


def returns(world: World, state: Tensor, plans: Tensor) -> Tensor:
    """What each plan earns, (CANDIDATES,)."""
    if FIXED:
        states, earned = state.expand(len(plans), STATE), torch.zeros(len(plans))
        for tick in range(HORIZON):
            states = world(states, plans[:, tick])
            earned -= states.square().mean(1)
        return earned
    earned = torch.zeros(len(plans))
    for number, plan in enumerate(plans):  # spent: loop-over-samples # change: loop-over-samples
        one = state
        for action in plan:  # spent: loop-over-samples # change: loop-over-samples
            one = world(one, action)  # spent: loop-over-samples # change: loop-over-samples
            earned[number] -= one.square().mean()  # spent: loop-over-samples # change: loop-over-samples
    return earned


def plan(world: World, state: Tensor) -> Tensor:
    """The first action of the best plan found."""
    mean, deviation = torch.zeros(HORIZON, ACTION), torch.ones(HORIZON, ACTION)
    for _ in range(ROUNDS):
        plans = mean + deviation * torch.randn(CANDIDATES, HORIZON, ACTION)
        best = plans[returns(world, state, plans).topk(6).indices]
        mean, deviation = best.mean(0), best.std(0)
    return mean[0]


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    world, state = World().eval(), torch.randn(STATE)
    for _ in range(MOVES):
        state = world(state, plan(world, state)).clamp(-3, 3)
    print(f"distance {state.norm():.3f}")


if __name__ == "__main__":
    main()
