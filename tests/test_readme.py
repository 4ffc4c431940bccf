"""README's first screen is what a person gets today: the demo's output, numbers aside.

Run as a script (``make readme``), this file puts the output of a real demo into README.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- demo -->\n```\n", "```\n<!-- /demo -->"


#: The demo trains ten times: a minute and a half. Whether a finding is one depends on the cores that are free.
pytestmark = [pytest.mark.slow, pytest.mark.alone]


def run_demo(folder: Path) -> str:
    """The demo's output in 80 columns, from a folder of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "demo", "--out", "runs/demo"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pasted() -> str:
    return README.read_text().split(BEGIN)[1].split(END)[0]


def findings(output: str) -> set[tuple[str, str, str]]:
    """(rule, file:line, what to change) of each finding; what is measured differs from run to run."""
    blocks = re.split(r"\n(?=\d [a-z-]+(?:  |\n))", output)[1:]
    found = set()
    for block in blocks:
        head = re.match(r"\d ([a-z-]+)  (?:spent at )?(\S+:\d+)", block)
        # What a finding explains beside itself is a matter of how busy the machine was.
        # Nor is how severe it is; the edit repeats the advice.
        advice = re.split(r"\n\n|\n  explains |\s(?:Critical|Warning):\s|\n    \S+:\d+\n", block.split("→", 1)[1])[0]
        assert head is not None
        found.add((head.group(1), head.group(2), " ".join(advice.split())))
    return found


def mistakes() -> dict[str, int]:
    """rule -> line right below its mark in the demo's script."""
    lines = (ROOT / "perfkit" / "demo" / "train.py").read_text().splitlines()
    marks = ((number, re.search(r"# mistake: ([a-z-]+)", line)) for number, line in enumerate(lines, start=1))
    return {mark.group(1): number + 1 for number, mark in marks if mark}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_demo(tmp_path_factory.mktemp("demo"))


def test_the_demo_names_every_planted_mistake_at_its_marked_line(demo: str) -> None:
    # A mistake is marked where it is corrected, which may be another line than that in which its time passes.
    corrected = [(rule, re.match(r"change (\S+:\d+) ", advice), place) for rule, place, advice in findings(demo)]
    lines = {(rule, change.group(1) if change else place) for rule, change, place in corrected}

    assert {(rule, int(place.rsplit(":", 1)[1])) for rule, place in lines} == set(mistakes().items())


def test_the_demo_measures_what_each_correction_gains(demo: str) -> None:
    speedup = re.search(r"(\d+\.\d)x as\s+fast", demo)

    assert speedup is not None
    assert float(speedup.group(1)) > 1.5
    assert all(re.search(rf"^{rule} .* ms \(\d+%\)\s*$", demo, re.M) for rule in ("input-bound", "many-small-ops"))


def test_the_verdict_fits_a_terminal_of_80_columns(demo: str) -> None:
    assert max(len(line) for line in demo.splitlines()) <= 80


def test_readmes_first_screen_shows_the_demos_findings_as_they_are_today(demo: str) -> None:
    assert findings(pasted()) == findings(demo)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        output = run_demo(Path(folder))
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + output + END + rest.split(END)[1])
