"""The answer of ``perfkit diagnose RUN --batch-fits N``."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.text import Text

from perfkit.errors import UsageError
from perfkit.measures.results.batch_fit import BatchFit
from perfkit.measures.results.measurements import Measurements
from perfkit.reports.console import print_text, stdout_console
from perfkit.reports.json import write_json
from perfkit.run.reading import is_run_folder, read_run


def report_batch_fit(found: Measurements, path: str, batch: int, *, as_json: bool) -> bool:
    """Print whether a batch of this size would fit; returns False where it does not.

    Raises:
        UsageError: the path is no run folder.
        RunError: too few batch sizes were measured.
    """
    # It loads numpy with the measures, which `perfkit run` must leave to the program.
    from perfkit.measures.memory.batch_line import fit_batch

    if not is_run_folder(Path(path)):
        raise UsageError(f"--batch-fits takes a run folder, which has the batch sizes of its steps; got {path}")
    run = read_run(Path(path))
    fit = fit_batch(found, run.sweep, batch, run.run.command if run.run is not None else ())
    if as_json:
        write_json(fit, sys.stdout)
    else:
        _print(fit)
    return fit.answer != "does not fit"


def _print(fit: BatchFit) -> None:
    console = stdout_console()
    print_text(Text(fit.sentence, style="bold"), console)
    print_text(Text(fit.basis, style="dim"), console)
