"""The edit that a finding advises, as a diff of the lines that it changes."""

from __future__ import annotations

import difflib
from pathlib import Path

import msgspec

from perfkit._format import shown_location
from perfkit._text import clean
from perfkit.findings import Finding
from perfkit.reports.source_files import SourceFiles
from perfkit.run.records import ChangedLine
from perfkit.source_edits.draft import Draft
from perfkit.source_edits.source import CannotWriteError, NotAsPlannedError

#: Lines of a diff that are shown: the arguments of one call.
_MAX_LINES = 12
#: A line of code that is longer is data.
_WIDEST = 200


class AdvisedDiff(msgspec.Struct, frozen=True):
    """``lines`` begin with "-" or "+" and have the indentation of the file without what is common to all of them."""

    place: str
    lines: tuple[str, ...]


def advised_diff(finding: Finding, sources: SourceFiles) -> AdvisedDiff | None:
    """The diff; None where the finding advises no such edit, or the source does not have that call (any more)."""
    edit = finding.edit
    if edit is None or edit.at.line is None or not sources.lines(edit.at.file)[0]:
        return None
    at = ChangedLine(file=edit.at.file, line=edit.at.line, function=edit.at.function or "")
    try:
        draft = Draft(Path(sources.folder, edit.at.file))
        arguments = draft.arguments(draft.names.call_at(at, (edit.call,)))
        for name, value in edit.arguments.items():
            if not name.isidentifier():
                return None
            arguments.want(name, value)
        old, new = (text.decode("utf-8", "replace").splitlines() for text in (draft.source.original, draft.write()))
    except (CannotWriteError, NotAsPlannedError, SyntaxError, ValueError):
        return None
    changed = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    changed = [line for line in changed if not line.startswith("@@")]
    if not changed or len(changed) > _MAX_LINES:
        return None
    indent = min(len(line) - 1 - len(line[1:].lstrip()) for line in changed)
    lines = tuple(clean(f"{line[0]} {line[1 + indent :]}".expandtabs(4), _WIDEST) for line in changed)
    return AdvisedDiff(shown_location(edit.at), lines)
