"""What tests of the simulated runtime share: programs that run on it, and its log."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

Log = list[dict[str, Any]]


def lines_of(file: Path) -> Log:
    """The log's lines; none if nothing was logged."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def logged(tmp_path: Path) -> Callable[[], Any]:
    """Makes a context with a list that has, after it, the lines that this process's runtime logged inside."""
    move_log = ctypes.CDLL(None).fake_gpu_log_to

    @contextmanager
    def log() -> Iterator[Log]:
        found: Log = []
        file = tmp_path / "log.jsonl"
        file.unlink(missing_ok=True)
        move_log(str(file).encode())
        try:
            yield found
        finally:
            move_log(None)
            found += lines_of(file)

    return log


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., tuple[list[str], Log]]:
    """Run a program with variables of the environment: the lines that it prints, and its log."""

    def run(source: str, **variables: str) -> tuple[list[str], Log]:
        file, log = tmp_path / "program.py", tmp_path / "program.jsonl"
        file.write_text(dedent(source))
        log.unlink(missing_ok=True)
        # The tests' own conftest takes NVTX's tool out of the environment.
        nvtx = os.environ["LD_PRELOAD"].split()[0].replace("libcudart.so.13", "libfakegpu_nvtx.so")
        environment = {**os.environ, "FAKE_GPU_LOG": str(log), "NVTX_INJECTION64_PATH": nvtx, **variables}
        done = subprocess.run(
            [sys.executable, str(file)], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), lines_of(log)

    return run
