"""What tables are made of, from a path: all measures of it, its trace, and its run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from perfkit.errors import TraceError
from perfkit.measures.gathering import measure
from perfkit.measures.results.measurements import TraceFacts
from perfkit.reports.tables._definition import TableSource
from perfkit.run.reading import is_run_folder, read_run
from perfkit.run.remote import is_url, local_copy
from perfkit.trace.cached_reader import CachedTraceReader


def table_source(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> TableSource:
    """Read a run folder (its newest window), a trace, or a report.

    Raises:
        TraceError, RunError: the path is missing, or neither a run nor a trace.
    """
    place = local_copy(os.fspath(path)) if is_url(path) else Path(path)
    read = CachedTraceReader()
    # Everything is measured, as for the diagnosis: a table and the verdict then never give two numbers for one thing.
    found = measure(place, progress=progress, read=read)
    facts = found.get(TraceFacts)
    try:
        trace = read(Path(facts.path)) if facts is not None else None
    except TraceError:  # it was removed meanwhile
        trace = None
    return TableSource(found, trace, read_run(place) if is_run_folder(place) else None)
