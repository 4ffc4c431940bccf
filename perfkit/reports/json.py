"""A diagnosis, a comparison or a trial as JSON: versioned, null for what was not measured."""

from __future__ import annotations

from typing import TextIO

from perfkit.comparison import Comparison
from perfkit.diagnosis import Diagnosis
from perfkit.run.records import Trial


def write_json(answer: Diagnosis | Comparison | Trial, file: TextIO) -> None:
    """Write the answer to ``file`` as indented JSON, with a newline at its end."""
    file.write(answer.to_json() + "\n")
