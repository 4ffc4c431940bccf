"""Intent detection of short utterances; the collate pads each batch to the model's maximum."""

import random
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
MAX_LEN, VOCAB = 128, 3000


def collate(batch: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    longest = max(len(ids) for ids, _ in batch)
    width = longest if FIXED else MAX_LEN  # change: padding-wasted
    ids = torch.zeros(len(batch), width, dtype=torch.long)  # change: padding-wasted
    for row, (tokens, _) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)  # change: padding-wasted
    return ids, torch.tensor([label for _, label in batch])


class IntentModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 96, padding_idx=0)
        self.pos = nn.Embedding(MAX_LEN, 96)
        layer = nn.TransformerEncoderLayer(96, 4, 192, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cls = nn.Linear(96, 20)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids == 0
        h = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        h = self.enc(h, src_key_padding_mask=mask)  # spent: padding-wasted
        h = (h * (~mask)[..., None]).sum(1) / (~mask).sum(1, keepdim=True)
        return self.cls(h)


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    data = [
        ([random.randrange(1, VOCAB) for _ in range(random.randrange(10, 25))], random.randrange(20))
        for _ in range(1280)
    ]
    loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate)
    model = IntentModel()
    opt = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    for epoch in range(2):
        for ids, y in loader:
            loss = nn.functional.cross_entropy(model(ids), y)  # spent: padding-wasted
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
