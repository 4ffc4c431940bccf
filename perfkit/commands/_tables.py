"""``perfkit diagnose --table``: one table of a recording on a terminal, as CSV or as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from perfkit.commands._progress import reading_bar
from perfkit.errors import TraceError, UsageError
from perfkit.reports.console import stdout_console


class TableRequest(NamedTuple):
    """What was asked for: the table, its groups, its order, how many rows, and in which format."""

    name: str | None
    sort: str | None
    limit: int | None
    by: str | None
    as_csv: bool
    as_json: bool

    def check(self) -> bool:
        """Whether a table was asked for.

        Raises:
            UsageError: there is no such table, an option is for a table only, or two of them contradict each other.
        """
        if self.name is None:
            for word, given in (("--sort", self.sort), ("--limit", self.limit), ("--by", self.by)):
                if given is not None:
                    raise UsageError(f"{word} is for a table: add --table NAME, as in --table ops")
            if self.as_csv:
                raise UsageError("--csv writes a table: add --table NAME, as in --table ops")
            return False
        if self.as_csv and self.as_json:
            raise UsageError("choose one of --csv and --json")
        # Tables load numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
        from perfkit.reports.tables import table_named

        table_named(self.name, self.by)
        return True


def print_one_table(path: str, asked: TableRequest) -> int:
    """Print the table of a run folder, a trace or a report.

    Raises:
        UsageError: the recording has no such table (the error says what to record), or the table no such column.
        TraceError, RunError: the path is missing, or neither a run nor a trace.
    """
    # These load numpy, see above.
    from perfkit.reports.tables import table_named
    from perfkit.reports.tables._reading import table_source
    from perfkit.reports.tables._writing import SCREEN, arranged, print_rows, write_csv, write_table_json

    assert asked.name is not None  # checked by the caller
    definition = table_named(asked.name, asked.by)
    with reading_bar(f"reading {Path(path).name}") as report:
        source = table_source(path, report)
    table = definition.make(source)
    if not table.rows:
        named = definition.name if asked.by is None else f"{definition.name} --by {asked.by}"
        reasons = "".join(f"; {sentence}" for sentence in source.found.missing[:3])
        raise TraceError(f"{path} holds nothing for the table {named}: {definition.needs}{reasons}")
    console = stdout_console()
    everything = asked.as_csv or asked.as_json or not console.is_terminal
    limit = asked.limit if asked.limit is not None else None if everything else SCREEN
    shown = arranged(table, asked.sort, limit)
    if asked.as_csv:
        write_csv(shown, sys.stdout)
    elif asked.as_json:
        write_table_json(shown, path, sys.stdout)
    else:
        print_rows(shown, len(table.rows), console)
    return 0
