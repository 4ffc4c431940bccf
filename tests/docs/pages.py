"""The examples of README.md and docs/: fenced blocks of markdown, with what a comment right above one says of it.

A comment in front of a block, which no reader sees, is one of:

- ``<!-- setup CODE -->``: Python that is run before the examples of the page, such as a model and a loader;
- ``<!-- pytest CODE -->``: the same for the block that follows, which is then a file of tests;
- ``<!-- file: NAME -->``: the block is a file that the page's other examples find;
- ``<!-- program: NAME -->``: the block is a program of its own;
- ``<!-- torchrun -->``: a program of two ranks under ``perfkit run``;
- ``<!-- edit: NAME -->``: a diff whose lines replace those of the file;
- ``<!-- output -->``: a console whose output is what its commands print today (`tests.docs.tutorial`);
- ``<!-- not run: REASON -->``: it is compiled only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(
    r"(?:^[ ]*<!--\s*(?P<kind>[a-z]+(?: run)?)(?::[ ]*|\s+|(?=-->))(?P<note>.*?)\s*-->\s*?\n)?"
    r"^(?P<indent>[ ]*)```(?P<language>[a-z]*)\n(?P<text>.*?)^[ ]*```$",
    re.M | re.S,
)
_SETUP = re.compile(r"^<!-- setup\n(.*?)^-->$", re.M | re.S)


class Block(NamedTuple):
    """A fenced block; ``kind`` and ``note`` are those of the comment above it, empty where there is none."""

    language: str
    text: str
    line: int
    kind: str
    note: str


class Page(NamedTuple):
    """A page with its blocks, and the code that is run before them."""

    path: Path
    setup: str
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """The path in the checkout."""
        return self.path.relative_to(ROOT).as_posix()

    def plain(self) -> list[Block]:
        """The examples of Python that run one after the other."""
        return [block for block in self.blocks if block.language == "python" and not block.kind]

    def of(self, kind: str) -> list[Block]:
        """The blocks with such a comment."""
        return [block for block in self.blocks if block.kind == kind]


def read_page(path: Path) -> Page:
    """The examples of a page."""
    text = path.read_text("utf-8")
    setup = "\n".join(_SETUP.findall(text))
    return Page(path, setup, tuple(_blocks(_SETUP.sub("", text))))


def _blocks(text: str) -> Iterator[Block]:
    for match in _BLOCK.finditer(text):
        margin = len(match["indent"])
        code = "".join(line[margin:] if line[:margin].isspace() else line for line in match["text"].splitlines(True))
        line = text.count("\n", 0, match.start("text")) + 1
        yield Block(match["language"], code, line, match["kind"] or "", match["note"] or "")


def find_pages() -> list[Page]:
    """README.md and every page of docs/ that a person writes."""
    below = sorted((ROOT / "docs").rglob("*.md"))
    written = [path for path in below if not {"_build", "_generated"} & set(path.relative_to(ROOT).parts)]
    return [read_page(path) for path in (ROOT / "README.md", *written)]
