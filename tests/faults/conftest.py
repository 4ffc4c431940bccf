"""The library that makes system calls fail, compiled once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.faults.injector import compile_injector


@pytest.fixture(scope="session")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the library; without gcc, or elsewhere than on Linux, the test is skipped."""
    if shutil.which("gcc") is None or sys.platform != "linux":
        pytest.skip("gcc is not installed")
    return compile_injector(tmp_path_factory.mktemp("injector"))
