"""Paths of a diagnosis as names of files, so that no line repeats the same folders."""

from __future__ import annotations

import os
from collections import Counter

from perfkit._format import shown_path
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding

#: Folders that are named: more are no help in finding a file.
_FOLDERS = 3


class ShortPaths:
    """Shortens each path to its file name where no other file of the diagnosis has that name.

    Attributes:
        folders: Where the files of the findings are, as far as they are shortened.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        found = {at.file for one in diagnosis.findings for at in _locations(one) if at is not None}
        ledger = diagnosis.shown_ledger
        others = {row.at.file for row in ledger.ledger.rows if row.at is not None} if ledger is not None else set()
        shown = {file: shown_path(file) for file in found | others}
        names = Counter(map(os.path.basename, shown.values()))
        short = {
            path: os.path.basename(path)
            for path in shown.values()
            if os.sep in path and names[os.path.basename(path)] == 1
        }
        # A path may be the end of another one.
        self._names = {f"{path}:": f"{short[path]}:" for path in sorted(short, key=len, reverse=True)}
        self.folders = sorted({os.path.dirname(shown[file]) for file in found if shown[file] in short})[:_FOLDERS]

    def short(self, text: str) -> str:
        """The text with the names of files instead of their paths."""
        for path, name in self._names.items():
            text = text.replace(path, name)
        return text


def _locations(finding: Finding) -> tuple[Location | None, ...]:
    return finding.spent, finding.change, finding.edit.at if finding.edit is not None else None
