"""Follows docs/tutorial.md as a reader does: writes its files, applies its edits, runs its commands.

``python -m tests.docs.tutorial`` (``make readme``) puts what the commands print into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT, Block, read_page

TUTORIAL = ROOT / "docs" / "tutorial.md"


def commands(block: Block) -> list[str]:
    """The command lines of a console."""
    return [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]


def run(command: str, folder: Path) -> str:
    """What a terminal of 80 columns shows of a command."""
    name, *arguments = command.split()
    assert name == "perfkit", command
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout
    # What is measured once on a machine is no part of the page.
    lines = [line for line in done.stdout.splitlines() if "measuring what this machine" not in line]
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def edit(text: str, diff: str) -> str:
    """A text in which each group of removed lines is replaced by the added lines after it."""
    for removed, added in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", diff, re.M):
        before, after = (re.sub(r"^[-+]", "", part, flags=re.M) for part in (removed, added))
        assert text.count(before) == 1, f"not once in the file: {before}"
        text = text.replace(before, after)
    return text


def follow(folder: Path) -> dict[str, str]:
    """Command -> what it prints, in the order of the page."""
    printed: dict[str, str] = {}
    for block in read_page(TUTORIAL).blocks:
        if block.kind == "file":
            (folder / block.note).write_text(block.text)
        elif block.kind == "edit":
            path = folder / block.note
            path.write_text(edit(path.read_text(), block.text))
        elif block.kind == "output":
            printed |= {command: run(command, folder) for command in commands(block)}
    return printed


def shown() -> dict[str, str]:
    """Command -> the output that the page has for it."""
    found: dict[str, str] = {}
    for block in read_page(TUTORIAL).of("output"):
        parts = re.split(r"^\$ (.*)\n", block.text, flags=re.M)[1:]
        found |= {command: output.strip("\n") for command, output in zip(parts[::2], parts[1::2], strict=True)}
    return found


def with_outputs(text: str, printed: dict[str, str]) -> str:
    """The page with these outputs below its commands."""

    def filled(match: re.Match[str]) -> str:
        lines = [line for line in match[2].splitlines() if line.startswith("$ ")]
        parts = [f"{line}\n{printed[line.removeprefix('$ ')]}".rstrip("\n") for line in lines]
        return f"{match[1]}{chr(10).join(parts)}\n{match[3]}"

    return re.sub(r"(<!-- output -->\n```console\n)(.*?)(```$)", filled, text, flags=re.M | re.S)


def main() -> None:
    """Follow the page, and write it where a reader would see what its text says."""
    with tempfile.TemporaryDirectory() as name:
        printed = follow(Path(name))
    if "A step is faster" not in "".join(printed.values()):
        sys.exit(f"this machine is too busy for the tutorial:\n{printed['perfkit compare']}")
    TUTORIAL.write_text(with_outputs(TUTORIAL.read_text("utf-8"), printed), "utf-8")


if __name__ == "__main__":
    main()
