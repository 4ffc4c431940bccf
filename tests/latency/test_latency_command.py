"""``perfkit latency``: measures what a user's function returns, from the shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.commands import main

SOURCE = """
import torch

def make():
    return torch.nn.Linear(4, 2), torch.zeros(1, 4)

def work():
    return lambda size: torch.zeros(size) + 1

def broken():
    raise ValueError("no weights")

def alone():
    return torch.nn.Linear(4, 2)

number = 3
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "torn.py").write_text("import torch\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", "torn"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("target", ["mine:make", "mine.py:make", "mine:work"])
def test_a_function_of_the_current_folder_is_measured(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latency", target, "--batch-sizes", "2,1", "--json", "--budget", "0.5"]) == 0

    out, err = capsys.readouterr()
    content = json.loads(out)
    assert [batch["batch_size"] for batch in content["batches"]] == [1, 2]
    assert all(batch["p50_ns"] > 0 for batch in content["batches"])
    assert err == ""


def test_the_table_goes_to_stdout_in_its_encoding() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "latency", "mine:make", "--batch-sizes", "1,4", "--budget", "0.5"],
        capture_output=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"},
    )

    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode("ascii").splitlines()
    assert lines[0] == "latency of Linear on cpu, 1 host thread, inference mode"
    assert lines[1].split() == ["batch", "p50", "p90", "p99", "samples/s", "memory"]
    assert lines[2].split()[2] == "us"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine"], "the target must be module:function or train.py:function"),
        (["mine:"], "the target must be module:function or train.py:function"),
        (["mine:nothing"], "mine has no nothing"),
        (["mine:number"], "must be a function, it is a int"),
        (["mine:alone"], "must return (model, example)"),
        (["mine:broken"], "mine:broken() raised ValueError: no weights (mine.py:11)"),
        (["torn:make"], "torn cannot be imported: ZeroDivisionError: division by zero (torn.py:2)"),
        (["nowhere:make"], "nowhere cannot be imported: ModuleNotFoundError"),
        (["nowhere.py:make"], "the file nowhere.py does not exist"),
        (["mine:make", "--batch-sizes", "1,a"], "--batch-sizes takes positive whole numbers"),
        (["mine:make", "--batch-sizes", "0"], "--batch-sizes takes positive whole numbers"),
        (["mine:make", "--budget", "0"], "budget_s must be a positive number"),
        (["mine:make", "--device", "nowhere"], "cannot be moved to --device nowhere"),
        (["mine:work", "--device", "cpu"], "--device needs a torch.nn.Module"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["latency", *arguments]) == 2

    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
