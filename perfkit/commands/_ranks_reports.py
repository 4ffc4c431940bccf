"""The diagnosis of many ranks, as `perfkit ranks`, and `perfkit diagnose` on their folder, print and write it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit.commands._pages import write_page
from perfkit.errors import UsageError
from perfkit.findings import SEVERITIES
from perfkit.ledger.step_budget import StepBudget
from perfkit.reports.console import stdout_console
from perfkit.reports.json import write_json
from perfkit.reports.ranks.markdown import write_ranks_markdown
from perfkit.reports.ranks.terminal import print_ranks
from perfkit.run.reading import is_run_folder

if TYPE_CHECKING:
    from perfkit.ranks.path_diagnosis import DiagnosedRanks

#: The rule that any late rank, host, stage or link counts for.
_RULE = "slow-rank"


def print_ranks_as(found: DiagnosedRanks, *, as_json: bool, as_markdown: bool) -> None:
    """Print the diagnosis for a terminal, or as JSON or markdown."""
    if as_json:
        write_json(found.diagnosis, sys.stdout)
    elif as_markdown:
        write_ranks_markdown(found, sys.stdout)
    else:
        print_ranks(found, stdout_console())


def check_ranks_gates(words: Sequence[str]) -> None:
    """Refuse gates that findings on ranks do not have.

    Raises:
        UsageError: a word is neither a severity nor ``slow-rank``.
    """
    for word in words:
        if word not in (*SEVERITIES, _RULE):
            raise UsageError(
                f"--fail-on takes for several ranks a severity ({', '.join(SEVERITIES)}) or {_RULE}, got {word!r}"
            )


def passes_gates(found: DiagnosedRanks, words: Sequence[str]) -> bool:
    """Whether no finding is one of these: ``slow-rank`` is any, a severity those whose saving is as large."""
    findings, wall_ns = found.diagnosis.findings, found.diagnosis.wall_ns
    if not findings or not wall_ns:
        return True
    # As on a device, warnings begin where reports do: each rank's waiting is measured, on a CPU too.
    step = StepBudget(wall_ns=wall_ns, per="step", source=found.diagnosis.source, on_device=True)
    worst = max(SEVERITIES.index(step.severity(finding.saving_ns)) for finding in findings)
    return not any(word == _RULE or SEVERITIES.index(word) <= worst for word in words)


def write_ranks_page(found: DiagnosedRanks, path: str, page: str | None, *, show: bool) -> None:
    """Write the page: ranks.html in a run folder, for traces in the current one, which is the user's to write to.

    Raises:
        UsageError: it cannot be written.
    """
    # Figures load numpy, see `write_page`.
    from perfkit.reports.figures.ranks import figures_of_ranks

    folder = Path(path) if is_run_folder(Path(path)) else Path()
    write_page(figures_of_ranks(found), page or folder / "ranks.html", show=show)
