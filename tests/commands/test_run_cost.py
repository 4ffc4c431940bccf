"""What `perfkit run` loads and starts in the process that trains, and what it writes about its own cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from perfkit.run.reading import read_run

#: Everything that diagnoses or tries; `perfkit.run.reading` and what it needs is not among them.
OFFLINE = ("comparison", "diagnosis", "ledger", "measures", "reports", "rules", "trace", "trial", "verdict")

PROGRAM = f"""
import atexit, sys
import torch

def loaded():
    from perfkit import _background
    offline = [name for name in sys.modules if name.startswith("perfkit.") and name.split(".")[1] in {OFFLINE}]
    print(offline, _background.started())

atexit.register(loaded)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(60):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def test_the_process_that_trains_loads_no_diagnosis_and_starts_one_helper(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = cli("run", "--out", "x", "train.py")

    assert done.stdout == "[] 1\n", done.stderr
    assert "x · steps.jsonl" in done.stderr
    rank = read_run(tmp_path / "x").ranks[0].rank
    assert rank is not None
    assert rank.fixed_overhead_ns is not None
    assert {name for name, ns in rank.fixed_overhead_ns.items() if ns > 0} >= {"start", "helpers", "end"}


def test_a_command_loads_nothing_of_the_others() -> None:
    code = (
        "import sys, click; from perfkit.commands import command_line\n"
        "command_line.get_command(click.Context(command_line), 'run')\n"
        f"offline = [n for n in sys.modules if n.startswith('perfkit.') and n.split('.')[1] in {OFFLINE}]\n"
        "print(offline, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[] False\n"
