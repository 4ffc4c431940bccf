"""A diagnosis, a comparison, a trial or a sweep as JSON: versioned, null for what was not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from perfkit.comparison import Comparison
from perfkit.diagnosis import Diagnosis
from perfkit.run.records import Sweep, Trial

if TYPE_CHECKING:
    from perfkit.ranks.diagnosing import RanksDiagnosis


def write_json(answer: Diagnosis | RanksDiagnosis | Comparison | Trial | Sweep, file: TextIO) -> None:
    """Write the answer to ``file`` as indented JSON, with a newline at its end."""
    file.write(answer.to_json() + "\n")
