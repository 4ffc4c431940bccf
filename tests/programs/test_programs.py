"""Training programs of ten kinds give the same output, exit code and loss to the last bit under `perfkit run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("test_"))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_the_same_under_perfkit_run(program: str, tmp_path: Path) -> None:
    script = str(HERE / f"{program}.py")
    plain = run(tmp_path, script)
    recorded = run(tmp_path, "-m", "perfkit", "run", "--syncs=auto", "--out", "x", script)

    assert (recorded.returncode, recorded.stdout) == (plain.returncode, plain.stdout), recorded.stderr
    assert plain.returncode == 0, plain.stderr
    assert "training goes on)" not in recorded.stderr, recorded.stderr


def test_there_are_programs_of_ten_kinds() -> None:
    assert len(PROGRAMS) >= 10
