"""A service that answers the requests in its queue one by one, where one batch would do."""

import sys

import torch
from torch import Tensor, nn

import perfkit

FIXED = "--fixed" in sys.argv
ROUNDS, QUEUE = 70, 32


class Ranker(nn.Module):
    """Scores a user's 256 features against 100 articles."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())]
        self.tower = nn.Sequential(*layers)
        self.articles = nn.Linear(256, 100)

    def forward(self, user: Tensor) -> Tensor:
        return self.articles(self.tower(user)).softmax(-1)


def serve(model: nn.Module, waiting: Tensor) -> Tensor:
    """The best article of each waiting request."""
    if FIXED:
        return model(waiting).argmax(-1)
    return torch.cat(
        [model(request[None]).argmax(-1) for request in waiting]
    )  # spent: loop-over-samples  # change: loop-over-samples


def main() -> None:
    torch.manual_seed(0)
    model = Ranker().eval()
    counts = torch.zeros(100, dtype=torch.long)
    with torch.inference_mode():
        for waiting in perfkit.steps(torch.randn(ROUNDS, QUEUE, 256)):
            counts += torch.zeros(100, dtype=torch.long).index_add_(
                0, serve(model, waiting), torch.ones(QUEUE, dtype=torch.long)
            )
    print(counts.max().item())


if __name__ == "__main__":
    main()
