"""Question answering API: each passage of a query is scored by its own call."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv


class CrossEncoder(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.emb = nn.Embedding(2000, width)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 192, batch_first=True), 2, enable_nested_tensor=False
        )
        self.score = nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.score(self.enc(self.emb(ids)).mean(1)).squeeze(-1)


class Service:
    def __init__(self, model: nn.Module) -> None:
        self.model = model.eval()

    @torch.inference_mode()
    def rank(self, passages: list[Tensor]) -> Tensor:
        if FIXED:
            scores = self.model(torch.stack(passages))
        else:
            scores = torch.tensor(
                [float(self.model(p.unsqueeze(0))) for p in passages]
            )  # spent: loop-over-samples # change: loop-over-samples
        return scores.argsort(descending=True)


def handle(service: Service, request: list[Tensor]) -> list[int]:
    best: list[int] = service.rank(request)[:3].tolist()  # change: loop-over-samples
    return best


def main() -> None:
    torch.manual_seed(0)
    service = Service(CrossEncoder())
    for _ in range(90):
        handle(service, [torch.randint(2000, (24,)) for _ in range(24)])


if __name__ == "__main__":
    main()
