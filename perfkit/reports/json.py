"""What perfkit answers, as JSON: versioned, null for what was not measured."""

from __future__ import annotations

from typing import Protocol, TextIO


class JsonAnswer(Protocol):
    """A diagnosis, a comparison, a history, a trial: what knows its own JSON."""

    def to_json(self) -> str:
        """The answer as indented JSON."""


def write_json(answer: JsonAnswer, file: TextIO) -> None:
    """Write the answer to ``file`` as indented JSON, with a newline at its end."""
    file.write(answer.to_json() + "\n")
