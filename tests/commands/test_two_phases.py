"""`perfkit run` of a program that evaluates before it trains: what it trains is recorded, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.run.reading import read_run

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(320, 64))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
model.eval()
with torch.no_grad():
    for (x,) in DataLoader(data, batch_size=8):
        model(x)
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for (x,) in DataLoader(data, batch_size=8, shuffle=True):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
"""


def test_training_that_begins_after_the_windows_is_recorded_and_its_lines_too(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    ran = cli("run", "--out", "run", "train.py")

    assert ran.returncode == 0, ran.stderr
    rank = read_run(tmp_path / "run").ranks[0]
    assert rank.rank is not None
    assert rank.lines is not None
    assert [window.reason for window in rank.rank.windows] == ["schedule", "trigger: training begins after other steps"]
    first_training = next(row.step for row in rank.steps if row.mode == "train")
    assert rank.rank.windows[1].first_step > first_training
    assert SCRIPT.split("\n").index("        loss.backward()") + 1 in {row.line for row in rank.lines.traced}
    assert "another loop" not in ran.stderr
