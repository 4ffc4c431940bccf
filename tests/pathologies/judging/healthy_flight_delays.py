"""Delays of flights from a table; the weights are saved every fifty steps and the rate warms up."""

import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

FLIGHTS, COLUMNS, BATCH, EPOCHS, SAVE_EVERY = 51_200, 64, 512, 2, 50


def main(folder: Path) -> None:
    torch.manual_seed(0)
    columns = torch.randn(FLIGHTS, COLUMNS)
    delays = columns[:, :8].sum(1).relu() + 0.3 * torch.randn(FLIGHTS)
    model = nn.Sequential(
        nn.Linear(COLUMNS, 512),
        nn.LayerNorm(512),
        nn.SiLU(),
        nn.Linear(512, 512),
        nn.LayerNorm(512),
        nn.SiLU(),
        nn.Linear(512, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=30)
    flights = list(zip(columns.split(BATCH), delays.split(BATCH), strict=True))
    step = 0
    for epoch in range(EPOCHS):
        for x, y in DataLoader(flights, batch_size=None, shuffle=True):
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warm_up.step()
            step += 1
            if step % SAVE_EVERY == 0:
                torch.save(model.state_dict(), folder / "last.pt")
                with (folder / "log.jsonl").open("a") as log:
                    log.write(json.dumps({"step": step, "epoch": epoch, "loss": loss.item()}) + "\n")
    print((folder / "log.jsonl").read_text(), end="")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
