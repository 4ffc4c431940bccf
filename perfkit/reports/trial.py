"""What `perfkit try` has measured, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from perfkit._format import ms, share_of, share_range
from perfkit._text import printable
from perfkit.ledger.ledger_text import TextTable
from perfkit.reports.console import print_line, print_table, print_text
from perfkit.run.records import Trial, TriedChange

_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_LOSSES = {"same": "same", "within-seeds": "as noise", "differs": "differs", "unknown": "unseen"}


def print_trial(trial: Trial, console: Console, *, patch: bool = True) -> None:
    """Write the verdict, a table of what was measured, what became of the other changes, with ``patch`` the diff."""
    floor = f" · two unchanged runs differ by {share_of(trial.floor)}" if trial.floor is not None else ""
    print_line(Text(f"{trial.program} · {trial.seconds:.0f} s{floor}", style="dim"), console)
    print_text(Text(trial.verdict, style="bold"), console)
    console.print()
    measured = [one for one in trial.changes if one.saving is not None and one.ci is not None]
    together = trial.together
    if together is not None and len(together.names) > 1:
        measured.append(together)
    if measured:
        print_table(trial_table(measured), console)
    said: dict[str, list[str]] = {}
    for one in trial.changes:
        if one not in measured or one.outcome == "undecided":
            said.setdefault(one.sentence, []).append(one.name)
    for sentence, names in said.items():
        print_text(Text.assemble((f"{', '.join(names)}: ", "bold"), sentence), console)
    for one in measured:
        if one.kind == "bound":
            print_text(Text(f"{one.name} is an upper bound: what a correction could save at most."), console)
        if one.pays_after is not None:
            print_text(Text(f"{one.name} pays after {one.pays_after:,} steps: until then it costs time."), console)
        if one.loss is not None and one.loss.outcome == "differs":
            print_text(Text(f"{one.name}: {one.loss.sentence}.", style="yellow"), console)
    for note in trial.notes:
        print_text(Text(f"Note: {note}"), console)
    if patch and trial.patch:
        console.print()
        for line in trial.patch.splitlines():
            # Whole, also where it is longer than the terminal is wide: a patch is copied.
            shown = "\t".join(map(printable, line.split("\t")))
            console.print(Text(shown, style=_STYLES.get(line[:1], "")), soft_wrap=True)
    for line in trial.unpatched:
        print_text(Text(f"By hand: {line}"), console)
    if trial.patch and trial.folder:
        console.print()
        console.print(f"Apply it: git apply {trial.folder}/trial.patch", style="dim", soft_wrap=True)


def trial_table(measured: list[TriedChange]) -> TextTable:
    """A row for each change with its steps, savings in percent of the step, and losses."""
    rows = [
        (
            one.name,
            _LOSSES[one.loss.outcome] if one.loss is not None else "",
            ms(one.before_ns) if one.before_ns is not None else "",
            ms(one.after_ns) if one.after_ns is not None else "",
            _saving(one),
            share_range(*one.ci) if one.ci is not None else "",
            share_range(*one.predicted) if one.predicted is not None else "",
        )
        for one in measured
    ]
    return TextTable(("change", "loss", "step", "with it", "saves", "95% interval", "predicted"), rows, 2)


def _saving(one: TriedChange) -> str:
    """What it saves; a saving that cannot be told from none is no number."""
    if one.outcome == "undecided":
        return "not certain"
    return "none" if one.outcome == "no-difference" or one.saving is None else share_of(one.saving)
