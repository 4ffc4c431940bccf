"""Exports reports of nsys and ncu to files that can be read: their own formats are closed, so the tools must do it."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from perfkit._env import NsightName, find_nsight
from perfkit.errors import TraceError

#: The ending of an nsys recording that was not imported, so that it is not a report yet.
RECORDING = ".qdstrm"
#: An hour: a report of 10 GB takes some minutes.
TIMEOUT_S = 3600
#: Exports of nsys that are kept, the newest: each is several times as large as its report.
KEPT = 4
#: Characters of a tool's output that go into an error.
_MAX_OUTPUT = 300


class _ReportFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's report format, and the command that exports it; ``{report}`` and ``{export}`` are file names."""

    tool: NsightName
    #: Today's ending, and older ones.
    endings: tuple[str, ...]
    export_ending: str
    install: str
    command: str


NSYS = _ReportFormat(
    tool="nsys",
    endings=(".nsys-rep", ".qdrep", RECORDING),
    export_ending=".sqlite",
    install="install Nsight Systems (its command line package is enough)",
    command="nsys export --type sqlite -o {export} {report}",
)
NCU = _ReportFormat(
    tool="ncu",
    endings=(".ncu-rep", ".nsight-cuprof-report"),
    export_ending=".csv",
    install="install Nsight Compute (no GPU is needed to read a report)",
    command="ncu --import {report} --page raw --csv > {export} && "
    "ncu --import {report} --page details --csv >> {export}",
)


def export_nsys_report(report: Path) -> Path:
    """Export a report of Nsight Systems to SQLite, in the user's cache folder; the path of the export.

    An earlier export is used again as long as the report has not changed. The environment variable ``PERFKIT_NSYS``
    names an nsys that is not on the PATH. Nothing is written next to the report.

    Raises:
        TraceError: nsys is not installed, is too old for this report, or cannot read it.
    """
    if report.suffix == RECORDING:
        by_hand = _by_hand(NSYS, report.with_suffix(NSYS.endings[0]))
        raise TraceError(
            f"{report} is a recording that nsys has not imported yet; run `QdstrmImporter -i"
            f" {shlex.quote(report.name)}`, which comes with nsys, then: {by_hand}"
        )
    with _exporting(NSYS, report) as nsys:
        status = report.stat()
        folder = _cache()
        folder.mkdir(parents=True, exist_ok=True)
        key = f"{report.absolute()}\0{status.st_size}\0{status.st_mtime_ns}"
        target = folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}.sqlite"
        if target.exists():
            target.touch()  # the newest are kept
            return target
        with tempfile.TemporaryDirectory(dir=folder) as work:
            export = Path(work) / "export.sqlite"
            words = ["export", "--type", "sqlite", "--force-overwrite=true", "-o", str(export), str(report.absolute())]
            code, output = run_quietly([nsys, *words], export.parent)
            if code or not export.exists():
                # Progress is drawn over itself with carriage returns; the error is at the end.
                lines = [line.strip() for line in output.replace("\r", "\n").split("\n") if "%" not in line]
                raise _failed(NSYS, report, nsys, code, " ".join(filter(None, lines))[-_MAX_OUTPUT:])
            export.replace(target)
        for old in sorted(folder.glob("*.sqlite"), key=lambda file: file.stat().st_mtime_ns)[:-KEPT]:
            old.unlink(missing_ok=True)
    return target


def export_ncu_report(report: Path, folder: Path) -> Path:
    """Export a report of Nsight Compute to CSV, in ``folder``; the path of the export.

    The file has the raw page, which has every metric, and then the details page, which has the texts of ncu's rules.
    The environment variable ``PERFKIT_NCU`` names an ncu that is not on the PATH.

    Raises:
        TraceError: ncu is not installed, is too old for this report, or cannot read it.
    """
    if not report.is_file():
        raise TraceError(f"{report} does not exist; give the path of a report of ncu")
    export = folder / "export.csv"
    with _exporting(NCU, report) as ncu, export.open("w+b") as out:
        words = [ncu, "--import", str(report.absolute()), "--page"]
        code, output = run_quietly([*words, "raw", "--csv"], folder, out)
        if code:
            out.seek(0)
            output += " " + out.read(4096).decode("utf-8", "replace")
            raise _failed(NCU, report, ncu, code, " ".join(output.split())[:_MAX_OUTPUT])
        # The tool wrote through its own descriptor: the end of the file is not where Python believes it to be.
        end = out.seek(0, os.SEEK_END)
        code, output = run_quietly([*words, "details", "--csv"], folder, out)
        if code:
            out.truncate(end)
            out.seek(end)
            reason = " ".join(output.split())[:_MAX_OUTPUT] or f"exit code {code}"
            out.write(f"==ERROR== the texts of ncu's rules could not be exported: {reason}\n".encode())
    return export


def run_quietly(command: Sequence[str], folder: Path, out: IO[bytes] | int = subprocess.PIPE) -> tuple[int, str]:
    """Run a tool without a terminal in ``folder``; its exit code and output (only stderr where ``out`` is a file).

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it took more than an hour.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT if out == subprocess.PIPE else subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, (done.stdout or done.stderr or b"").decode("utf-8", "replace")


@contextmanager
def _exporting(format: _ReportFormat, report: Path) -> Iterator[str]:
    """The path of the installed tool; errors of running it are raised with the command that exports by hand."""
    path, why = find_nsight(format.tool)
    by_hand = _by_hand(format, report)
    if path is None:
        raise TraceError(
            f"{report} is a report of {format.tool}, which only {format.tool} can read, and {why}: {format.install}, or"
            f" run on the machine that recorded it: {by_hand}"
        )
    try:
        yield path
    except subprocess.TimeoutExpired:
        raise TraceError(f"{path} took more than an hour to export {report}; export it by hand: {by_hand}") from None
    except OSError as error:
        raise TraceError(f"{report} cannot be exported: {error}; export it by hand: {by_hand}") from None


def _failed(format: _ReportFormat, report: Path, tool: str, code: int, output: str) -> TraceError:
    return TraceError(
        f"{tool} could not export {report} ({output or f'exit code {code}'}); a report needs an {format.tool} at least"
        f" as new as the one that recorded it: run there: {_by_hand(format, report)}"
    )


def _by_hand(format: _ReportFormat, report: Path) -> str:
    export = report.with_suffix(format.export_ending)
    return format.command.format(report=shlex.quote(report.name), export=shlex.quote(export.name))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "perfkit" / "nsys"
