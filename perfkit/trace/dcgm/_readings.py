"""What both formats are read into: the values of one GPU at one time, and what was left out."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class GpuName(NamedTuple):
    """How a file names a GPU: its host (empty where unknown), its number there, its UUID and its model."""

    host: str
    number: int | None
    uuid: str = ""
    model: str | None = None


#: Readings that are in memory at a time, 300 MB: those with times all, as a file may have them field by field.
MAX_FILE_READINGS = 500_000


class Reading(NamedTuple):
    """Values of a GPU, by quantity; ``unix_ns`` is None where the file has no times."""

    gpu: GpuName
    unix_ns: int | None
    values: dict[str, float]


#: Different names of what was not read that are kept, and their length: a sentence lists six of them.
_MAX_NAMES, _MAX_NAME = 1_000, 100


class Skipped:
    """What of a file was not read: fields and entities by name, and how many lines were damaged or too many."""

    def __init__(self) -> None:
        self.fields: Counter[str] = Counter()
        self.entities: Counter[str] = Counter()
        self.damaged = 0
        self.beyond = 0

    def add_field(self, name: str) -> None:
        """Count a field."""
        _count(self.fields, name)

    def add_entity(self, name: str) -> None:
        """Count an entity that is not a whole GPU."""
        _count(self.entities, name)


def _count(names: Counter[str], name: str) -> None:
    if (short := name[:_MAX_NAME]) in names or len(names) < _MAX_NAMES:
        names[short] += 1
