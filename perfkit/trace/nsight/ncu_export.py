"""Exports a report of Nsight Compute (``.ncu-rep``) to CSV: its own format is closed, so ncu itself must do it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from perfkit._env import find_nsight
from perfkit.errors import TraceError

#: What Nsight Compute records itself, today and before 2020.
NCU_OWN = (".ncu-rep", ".nsight-cuprof-report")
#: An hour, as for nsys: a report with source counters is some GB.
MOST_SECONDS = 3600


def export_report(report: Path, folder: Path) -> Path:
    """Export a report with the ncu that is installed; the environment variable ``PERFKIT_NCU`` may name it.

    Raises:
        TraceError: ncu is not installed, is too old for this report, or cannot read it.
    """
    by_hand = f"ncu --import {shlex.quote(report.name)} --page raw --csv > {shlex.quote(report.stem)}.csv"
    if not report.is_file():
        raise TraceError(f"{report} does not exist; give the path of a report of ncu")
    ncu, why = find_nsight("ncu")
    if ncu is None:
        raise TraceError(
            f"{report} is ncu's own format, which only ncu can read, and {why}: install Nsight Compute (no GPU is"
            f" needed to read a report), or run where it was recorded: {by_hand}"
        )
    made = folder / "export.csv"
    command = [ncu, "--import", str(report.absolute()), "--page", "raw", "--csv"]
    try:
        with made.open("wb") as out:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                timeout=MOST_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise TraceError(f"{ncu} took more than an hour to export {report}; do it by hand: {by_hand}") from None
    except OSError as error:
        raise TraceError(f"{report} cannot be exported: {error}; do it by hand: {by_hand}") from None
    if done.returncode:
        with made.open("rb") as out:
            words = (done.stderr + b" " + out.read(4096)).decode("utf-8", "replace").split()
        said = " ".join(words)[:300] or f"exit code {done.returncode}"
        raise TraceError(
            f"{ncu} could not export {report} ({said}); a report needs an ncu"
            f" at least as new as the one that recorded it: run there: {by_hand}"
        )
    return made
