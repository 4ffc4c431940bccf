"""What holds memory at the peak: as the command, the terminal, markdown, JSON and the page show it after a real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.commands import main
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.reports.figures import figures_of, read_figures, write_figures
from perfkit.reports.html import write_html
from perfkit.reports.terminal import print_diagnosis

PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

blocks = torch.nn.Sequential(*(Block() for _ in range(6)))
net = torch.nn.Sequential(torch.nn.Linear(64, 64), blocks)
optimizer = torch.optim.Adam(net.parameters())
data = TensorDataset(torch.randn(20 * 512, 64))
for (x,) in DataLoader(data, batch_size=512):
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run folder, and what the command printed at its end."""
    folder = tmp_path_factory.mktemp("memory")
    (folder / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "run", "--memory", "--schedule", "1,1,1", "--out", "run", "train.py"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stderr


@pytest.fixture(scope="module")
def diagnosed(ran: tuple[Path, str]) -> Diagnosis:
    return diagnose(ran[0])


def test_the_run_prints_the_peak_by_kind_module_and_line_and_what_checkpointing_frees(ran: tuple[Path, str]) -> None:
    _, printed = ran

    assert "cpu: tensors hold " in printed
    for word in ("parameters", "optimizer state", "activations", "module, at the peak", "train.py:10", "phase"):
        assert word in printed
    assert "checkpoint(block, x) for each of 1" in printed
    assert max(len(line) for line in printed.splitlines() if "CPUAllocator" not in line) <= 80


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_terminal_of_any_width_shows_it(diagnosed: Diagnosis, written: Callable[..., str], width: int) -> None:
    text = written(print_diagnosis, diagnosed, width, all=True)
    assert all(len(line) <= width for line in text.splitlines())
    assert "activations" in text


def test_json_and_markdown_have_it(ran: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(ran[0]), "--json"]) == 0
    (memory,) = json.loads(capsys.readouterr().out)["figures"]["peak_memory"]
    assert memory["device"] == "cpu"
    assert sum(memory["holding"].values()) == memory["peak_bytes"]
    assert {one["name"] for one in memory["modules"]} >= {"0", "1.0", "1.0.up", "1.5.down"}

    assert main(["diagnose", str(ran[0]), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert "tensors hold" in text
    assert "| 1.0.up |" in text


def test_the_page_draws_the_peak_as_a_flame_graph_that_a_key_zooms(
    diagnosed: Diagnosis, ran: tuple[Path, str], tmp_path: Path, opened: Callable[..., Any]
) -> None:
    data = figures_of(diagnosed, ran[0])
    assert read_figures(write_figures(tmp_path, data)) == data
    (peak,) = data.peaks
    # A parent holds what its children hold.
    below = [0] * len(peak.flame.total)
    for parent, total in zip(peak.flame.parent, peak.flame.total, strict=True):
        if parent >= 0:
            below[parent] += total
    assert all(inside <= total for inside, total in zip(below, peak.flame.total, strict=True))

    seen = opened(write_html(data, tmp_path / "page.html"))
    section = seen.section("peak")
    assert "tensors hold" in section.inner_text()
    box = section.locator(".flame g[aria-label^='activations']").first
    box.focus()
    seen.page.keyboard.press("Enter")
    assert "of the peak" in section.locator(".status").inner_text()
    seen.page.keyboard.press("Escape")
    assert section.locator(".status").inner_text() == ""
    assert section.locator("table[data-table='peak-0-checkpoints'] tbody tr").count() >= 1


def test_explain_memory_is_one_screen_and_names_what_is_measured_and_what_it_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "memory"]) == 0
    text = capsys.readouterr().out

    assert len(text.splitlines()) <= 25
    for word in (
        "perfkit run --memory",
        "activations",
        "temporaries",
        "checkpoint_sequential",
        "--batch-fits",
        "Costs",
    ):
        assert word in text
    assert main(["explain"]) == 0
    assert "\nmemory " in capsys.readouterr().out


def test_two_runs_are_compared_by_their_memory(ran: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(ran[0])
    assert main(["compare", folder, folder, "--max-more", "memory=5%"]) == 0
    assert "memory of a step" in capsys.readouterr().out
