"""A terminal: a console that survives its reader, lines cut or wrapped to its width, a step as a bar.

Colour only helps: every part of the bar has a character of its own, and a pipe gets no colour codes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from perfkit._format import ms, percent
from perfkit._text import printable, printable_lines
from perfkit.ledger.ledger_text import TextTable

#: part of a step -> (character, colour)
_STYLES = {
    "data": ("█", "red"),
    "transfer": ("▚", "magenta"),
    "forward": ("▓", "blue"),
    "backward": ("▒", "cyan"),
    "optimizer": ("░", "green"),
    "validation": ("▞", "yellow"),
    "callbacks": ("╱", "bright_magenta"),
    "logging": ("╲", "bright_yellow"),
    "checkpoint": ("╳", "bright_blue"),
    "other": ("═", "bright_black"),
    "compute": ("▓", "blue"),
    "communication": ("▚", "magenta"),
    "copies": ("▒", "yellow"),
    "idle": ("·", "bright_black"),
    "parameters": ("█", "blue"),
    "buffers": ("▞", "bright_blue"),
    "gradients": ("▓", "cyan"),
    "optimizer state": ("▒", "green"),
    "activations": ("░", "red"),
    "inputs": ("╲", "yellow"),
    "temporaries": ("╱", "magenta"),
}
#: For a file that takes ASCII only; every character keeps its width.
_ASCII = str.maketrans("█▚▓▒░▞╱╲╳═·→µ…", "#+%=-*/\\x~.>u.")


class _Console(Console):
    """A console that prints text as it is, and nothing more once its reader has closed the pipe (``| head``).

    rich would take ``[nvml]`` in a text for markup, ``:key:`` for a picture, and colour what looks like a number, and
    would pass on what a terminal takes for commands. At a closed pipe it would end the program with exit code 1, which
    here means a failed gate or ends a training, and would close stdout even if only the reader of stderr is closed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # Every plain string passes here before it is laid out, cells and titles of tables too.
        return super().render_str(printable_lines(text), **options)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        if not self.stderr:
            # Flushing the rest of stdout's buffer at exit would fail.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)


def stdout_console() -> Console:
    """The console for the result of a command."""
    return _Console()


def stderr_console() -> Console:
    """The console for perfkit's messages during a running program."""
    return _Console(stderr=True)


def console_for(file: IO[str], *, columns: int, terminal: bool) -> Console:
    """The console for text that another process prints, to a ``terminal`` or a file, in ``columns``."""
    # None: as the environment says.
    return _Console(file=file, width=columns, force_terminal=terminal or None)


def print_bar(times: dict[str, int], console: Console, shown: Callable[[float], str] = ms) -> None:
    """Print the parts of a step (some more than 0) as a bar of the terminal's width, with a legend below.

    ``shown`` makes text of a part: of a time in ns, or of bytes.
    """
    total = sum(times.values())
    bar = Text()
    for name, cells in _cells(times, console.width).items():
        bar.append(_STYLES[name][0] * cells, style=_STYLES[name][1])
    print_line(bar, console)
    legend = Text()
    for name, ns in times.items():
        entry = Text(_STYLES[name][0], style=_STYLES[name][1])
        entry.append(f" {name} {shown(ns)} {percent(ns, total)}", style="default")
        if legend and legend.cell_len + 2 + entry.cell_len > console.width:
            print_line(legend, console)
            legend = Text()
        legend.append("  " if legend else "").append_text(entry)
    print_line(legend, console)


def _cells(times: dict[str, int], width: int) -> dict[str, int]:
    """Widths that add up to ``width``: integer parts first, the remaining cells to the largest remainders."""
    total = sum(times.values())
    exact = {name: width * ns / total for name, ns in times.items()}
    cells = {name: int(share) for name, share in exact.items()}
    left = width - sum(cells.values())
    for name in sorted(exact, key=lambda name: cells[name] - exact[name])[:left]:
        cells[name] += 1
    return cells


def print_table(table: TextTable, console: Console) -> None:
    """Print a table in the terminal's width, see `table_lines`."""
    for line in table_lines(table, console):
        print_line(line, console)


def table_lines(table: TextTable, console: Console) -> list[Text]:
    """A table in the terminal's width: numbers to the right, the longest texts without their middle."""
    cells = [table.head, *table.rows]
    spaces = [max(len(row[at]) for row in cells) for at in range(len(table.head))]
    # Two blanks stand between columns.
    for _ in range(sum(spaces) + 2 * (len(spaces) - 1) - console.width):
        longest = max(range(table.numbers), key=lambda at: spaces[at])
        spaces[longest] = max(1, spaces[longest] - 1)
    lines = []
    for number, row in enumerate(cells):
        shown = [
            f"{_without_middle(cell, space):<{space}}" if at < table.numbers else f"{cell:>{space}}"
            for at, (cell, space) in enumerate(zip(row, spaces, strict=True))
        ]
        lines.append(Text("  ".join(shown).rstrip(), style="dim" if number == 0 else ""))
    return lines


def _without_middle(text: str, width: int) -> str:
    """Text in at most ``width`` characters: the ends of paths and names show more than their beginnings."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def print_text(text: Text, console: Console, indent: int = 0) -> None:
    """Print wrapped text, see `text_lines`."""
    for line in text_lines(text, console, indent):
        print_line(line, console)


def text_lines(text: Text, console: Console, indent: int = 0) -> list[Text]:
    """Wrapped text without the blanks that rich leaves at the ends of its lines."""
    # Before it is wrapped: a line feed in a name is no end of a line, and a name may have megabytes.
    text.plain = printable(text.plain.replace("\n", " "))
    lines = []
    for line in text.wrap(console, max(20, console.width - indent)):
        line.rstrip()
        lines.append(Text(" " * indent).append_text(line))
    return lines


def print_line(line: Text, console: Console) -> None:
    """Print one line, cut at the width of the terminal, in characters that its encoding has."""
    line.plain = printable(line.plain)
    if console.options.ascii_only:
        line.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
    line.truncate(console.width, overflow="ellipsis" if not console.options.ascii_only else "crop")
    console.print(line, soft_wrap=True)
