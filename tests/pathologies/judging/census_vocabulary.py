"""Income from census records: categories become numbers by a vocabulary in a JSON file."""

import json
import random
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
RECORDS, BATCH, WIDTH = 6400, 64, 24
COLUMNS = {"occupation": 850, "county": 1300, "education": 16, "relation": 6}


def load_vocabulary(folder: Path) -> dict[str, dict[str, int]]:
    """The number of each category, by column."""
    return json.loads((folder / "vocabulary.json").read_text())  # spent: input-bound


class Census(Dataset):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vocabulary = load_vocabulary(folder)
        self.records = [json.loads(line) for line in (folder / "census.jsonl").read_text().splitlines()]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        record = self.records[index]
        vocabulary = self.vocabulary
        if not FIXED:
            vocabulary = load_vocabulary(self.folder)  # spent: input-bound # change: input-bound
        numbers = [vocabulary[column][record[column]] for column in COLUMNS]
        return torch.tensor(numbers), torch.tensor(float(record["high"]))


class Income(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(size, WIDTH) for size in COLUMNS.values()])
        hidden = [nn.Linear(4 * WIDTH, 1400), nn.ReLU(), nn.Linear(1400, 1400), nn.ReLU()]
        self.deep = nn.Sequential(*hidden, nn.Linear(1400, 1))

    def forward(self, numbers: Tensor) -> Tensor:
        embedded = [embed(numbers[:, column]) for column, embed in enumerate(self.embeds)]
        return self.deep(torch.cat(embedded, dim=1)).squeeze(1)


def write_census(folder: Path) -> None:
    chance = random.Random(9)
    names = {column: [f"{column} {number}" for number in range(size)] for column, size in COLUMNS.items()}
    vocabulary = {column: {name: number for number, name in enumerate(every)} for column, every in names.items()}
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary, indent=1))
    with (folder / "census.jsonl").open("w") as file:
        for _ in range(RECORDS):
            record = {column: chance.choice(every) for column, every in names.items()}
            file.write(json.dumps(record | {"high": chance.random() < 0.3}) + "\n")


def main(folder: Path) -> None:
    torch.manual_seed(0)
    write_census(folder)
    loader = DataLoader(Census(folder), batch_size=BATCH, shuffle=True)
    model = Income()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for numbers, high in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers), high)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
