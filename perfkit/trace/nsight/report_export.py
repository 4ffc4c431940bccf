"""Exports a report of Nsight Systems (``.nsys-rep``) to SQLite: its own format is closed, so nsys itself must do it."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from perfkit._env import find_nsight
from perfkit.errors import TraceError

#: What nsys has recorded and not yet made a report of.
RECORDING = ".qdstrm"
#: An hour: a report of 10 GB takes some minutes.
MOST_SECONDS = 3600
#: Exports that are kept, the newest: each is several times its report.
KEPT = 4


def export_report(report: Path) -> Path:
    """Export a report with the nsys that is installed; the path of the SQLite file, in the user's cache folder.

    An export made before is used again as long as the report has not changed. The environment variable
    ``PERFKIT_NSYS`` names an nsys that is not on the PATH. Nothing is written beside the report.

    Raises:
        TraceError: nsys is not installed, is too old for this report, or cannot read it.
    """
    name, export = (shlex.quote(text) for text in (report.name, f"{report.stem}.sqlite"))
    by_hand = f"nsys export --type sqlite -o {export} {name}"
    if report.suffix == RECORDING:
        raise TraceError(
            f"{report} is a recording that nsys has not imported yet; run nsys' own `QdstrmImporter -i {name}`,"
            f" then: nsys export --type sqlite -o {export} {shlex.quote(report.stem)}.nsys-rep"
        )
    nsys = _find_nsys(report, by_hand)
    try:
        now = report.stat()
        folder = _cache()
        folder.mkdir(parents=True, exist_ok=True)
        key = f"{report.absolute()}\0{now.st_size}\0{now.st_mtime_ns}"
        target = folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}.sqlite"
        if target.exists():
            target.touch()  # The newest are kept.
            return target
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "export.sqlite"
            _run(nsys, report, made, by_hand)
            made.replace(target)
        for old in sorted(folder.glob("*.sqlite"), key=lambda file: file.stat().st_mtime_ns)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{report} cannot be exported: {error}; do it by hand: {by_hand}") from None
    return target


def _find_nsys(report: Path, by_hand: str) -> str:
    found, why = find_nsight("nsys")
    if found is None:
        raise TraceError(
            f"{report} is nsys' own format, which only nsys can read, and {why}: install Nsight Systems (its command"
            f" line package is enough), or run where it was recorded: {by_hand}"
        )
    return found


def _run(nsys: str, report: Path, made: Path, by_hand: str) -> None:
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite=true", "-o", str(made), str(report.absolute())]
    try:
        done = subprocess.run(
            command,
            cwd=made.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TraceError(f"{nsys} took more than an hour to export {report}; do it by hand: {by_hand}") from None
    if done.returncode or not made.exists():
        # Progress is drawn over itself with carriage returns; what went wrong stands at the end.
        lines = done.stdout.decode("utf-8", "replace").replace("\r", "\n").split("\n")
        said = " ".join(line.strip() for line in lines if line.strip() and "%" not in line)[-300:]
        raise TraceError(
            f"{nsys} could not export {report} ({said or f'exit code {done.returncode}'}); a report needs an nsys at"
            f" least as new as the one that recorded it: run there: {by_hand}"
        )


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "perfkit" / "nsys"
