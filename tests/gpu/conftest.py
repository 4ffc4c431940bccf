"""Tests that need a CUDA device, real or simulated; skipped as a whole without one.

Each is marked with what it needs: `semantics`, `values` or `real` (pyproject.toml says what they mean). On a GPU
`make gpu-check` runs all of them, and on the simulated runtime `make fake-gpu` the first two kinds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

HERE = Path(__file__).resolve().parent
NEEDS = ("semantics", "values", "real")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unmarked = []
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if sum(item.get_closest_marker(need) is not None for need in NEEDS) != 1:
                unmarked.append(item.nodeid)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
    if unmarked:
        raise pytest.UsageError(f"mark each test with one of {', '.join(NEEDS)}: {', '.join(unmarked)}")


@pytest.fixture
def run_source(tmp_path: Path) -> Callable[[str, dict[str, Any]], None]:
    """Run source in this process, from a real file, with these names."""

    def run(source: str, names: dict[str, Any]) -> None:
        file = tmp_path / "source.py"
        file.write_text(source)
        exec(compile(source, str(file), "exec"), dict(names))

    return run


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """Run a program in a process of its own, in the test's folder; returns what it printed.

    It has ``os``, ``sys``, ``torch`` and ``perfkit``. ``command`` are options of Python before its file, and
    ``environment`` further variables.
    """

    def run(source: str, *command: str, **environment: str) -> str:
        (tmp_path / "program.py").write_text("import os, sys, torch, perfkit\n" + dedent(source))
        done = subprocess.run(
            [sys.executable, *command, "program.py"],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
