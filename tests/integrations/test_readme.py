"""The programs in integrations/README.md, run as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "integrations" / "README.md"

#: Section -> what its program leaves behind.
LEFT = {
    "Lightning": ("runs/lightning/diagnosis.json", "runs/lightning/rank-0/window-0.pt.trace.json.gz"),
    "Hugging Face Trainer": (
        "runs/huggingface/diagnosis.json",
        "runs/huggingface/rank-0/window-0.pt.trace.json.gz",
    ),
    "Accelerate": ("runs/accelerate/diagnosis.json", "runs/accelerate/rank-0/window-0.pt.trace.json.gz"),
    "TensorBoard": ("tb/*.pt.trace.json.gz", "tb/events.out.tfevents.*"),
    "A plain loop": ("runs/plain/diagnosis.json", "runs/plain/rank-0/window-0.pt.trace.json.gz"),
}


def programs() -> dict[str, str]:
    sections = re.split(r"^## ", README.read_text(), flags=re.MULTILINE)[1:]
    found = {section.splitlines()[0]: re.search(r"```python\n(.*?)```", section, re.DOTALL) for section in sections}
    return {title: program[1] for title, program in found.items() if program is not None}


def test_every_section_has_a_program() -> None:
    text = README.read_text()

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(programs()) == list(LEFT)
    assert text.count("```python") == len(LEFT)


@pytest.mark.parametrize("section", LEFT)
def test_the_program_of_a_section_runs_and_leaves_its_files(section: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs()[section])

    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "perfkit:" not in done.stderr  # nothing of perfkit's failed
    for pattern in LEFT[section]:
        assert list(tmp_path.glob(pattern)), pattern
