"""Daily runoff of river catchments from rain: two stores that fill and drain, with parameters that are learned."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, DAYS, CATCHMENTS, STORES = 60, 120, 400, 3


class Catchments(nn.Module):
    """The states of the stores on each day, (days, catchments, stores)."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.randn(CATCHMENTS))
        self.drain = nn.Parameter(torch.randn(2, CATCHMENTS) - 2.0)

    def forward(self, rain: Tensor) -> Tensor:
        share, (fast, slow) = self.share.sigmoid(), self.drain.sigmoid()
        rest, keeps_fast, keeps_slow = 1 - share, 1 - fast, 1 - slow
        soil, ground = torch.zeros(CATCHMENTS), torch.zeros(CATCHMENTS)
        days = torch.zeros(len(rain), CATCHMENTS, STORES)
        series = []
        for day in range(len(rain)):
            soil = soil + share * rain[day]
            ground = ground + rest * rain[day]
            flow = fast * soil + slow * ground
            soil, ground = soil * keeps_fast, ground * keeps_slow
            state = torch.stack((soil, ground, flow), dim=1)
            if FIXED:
                series.append(state)
            else:
                days[day] = state  # spent: slice-writes # change: slice-writes
        return torch.stack(series) if FIXED else days


def main() -> None:
    torch.manual_seed(0)
    model = Catchments()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        rain = torch.rand(DAYS, CATCHMENTS)
        measured = 0.5 * rain
        loss = (model(rain)[:, :, 2] - measured).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
