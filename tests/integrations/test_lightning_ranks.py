"""Trainings of two processes over gloo: started by Lightning's launcher, and by spawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import sys
import torch
from lightning.pytorch import LightningModule, Trainer
from perfkit.integrations.lightning import ProfilerCallback

class Tiny(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    prof = ProfilerCallback("run", ranks=(0, 1), log=False)
    trainer = Trainer(
        strategy=sys.argv[1], devices=2, accelerator="cpu", max_epochs=1, callbacks=[prof], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Tiny(), torch.utils.data.DataLoader([torch.ones(4)] * 24))
    print("steps seen here:", None if prof.profile is None else prof.profile.step_num)
"""


@pytest.mark.parametrize(("strategy", "seen"), [("ddp", "12"), ("ddp_spawn", "None")])
def test_each_rank_writes_its_own_folder_and_rank_0_says_the_verdict(lightning: Any, strategy: str, seen: str) -> None:
    (lightning.folder / "train.py").write_text(PROGRAM)
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("LOCAL_RANK", "MASTER_", "NODE_"))
    }

    done = subprocess.run(
        [sys.executable, "train.py", strategy],
        cwd=lightning.folder,
        env={**ours, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert [path.name for path in sorted(lightning.folder.iterdir()) if path.is_dir()] == ["run"]
    for rank in (0, 1):
        assert [row.step for row in lightning.rows(lightning.folder / "run", rank)] == list(range(12))
        assert len(lightning.rank(lightning.folder / "run", rank).windows) == 1
        assert (lightning.folder / "run" / f"rank-{rank}" / "window-0.pt.trace.json.gz").is_file()
    verdict = json.loads((lightning.folder / "run" / "diagnosis.json").read_bytes())["verdict"]
    assert done.stderr.count(verdict[:30]) == 1
    # A spawned process has the recording; the parent's callback has seen nothing.
    assert f"steps seen here: {seen}" in done.stdout
