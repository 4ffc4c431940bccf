"""A process that the program forks, and that ends as any Python program, ends while perfkit records its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Kineto is on, or was on, when the process forks: torch's own profiler then makes the child wait for ever.
FORKS = """
import os, sys, torch, perfkit

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with perfkit.profile("x", quiet=True, schedule=perfkit.schedule(wait=1, warmup=1, active=2, repeat=1)):
    for number in range(8):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        if number in (2, 7):
            sys.stdout.flush()
            child = os.fork()
            if not child:
                print("of the child")
                sys.exit(3)
            print(os.waitpid(child, 0)[1] >> 8)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="os.fork with threads is Linux's")
def test_a_forked_process_ends_with_its_status_and_output(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORKS)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.stdout.splitlines() == ["of the child", "3"] * 2, done.stderr
    assert done.returncode == 0
