"""The reports that a tool left in a folder, and recordings of nsys that still have to be imported."""

from __future__ import annotations

import glob
import subprocess
from pathlib import Path

from perfkit._env import NsightName
from perfkit._stderr import print_message
from perfkit.errors import UsageError
from perfkit.trace.nsight.report_export import NCU, NSYS, run_quietly

_FORMATS = {"nsys": NSYS, "ncu": NCU}

IMPORTER = "QdstrmImporter"
#: Where the packages of NVIDIA and Debian have the importer, relative to each folder above nsys.
_IMPORTERS = (IMPORTER, f"host-linux*/{IMPORTER}", f"nsight-systems*/host-linux*/{IMPORTER}")
_FOLDERS_ABOVE = 5


def reports_in(folder: Path, tool: NsightName, rank: str | None = None) -> list[Path]:
    """The reports and recordings of a tool in a folder, of one rank if given, oldest first."""
    begin = f"{tool}-rank-{rank}" if rank is not None else tool
    found = [
        file
        for ending in _FORMATS[tool].endings
        for file in folder.glob(f"{glob.escape(begin)}*{ending}")
        # "nsys-rank-1" is not the beginning of "nsys-rank-10".
        if not file.name[len(begin) : len(begin) + 1].isdigit()
    ]
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name))


def remove_old_reports(folder: Path, tool: NsightName, rank: str | None, *, overwrite: bool) -> None:
    """Refuse a folder with reports that would be lost, or mistaken for those of this run; or remove them.

    Raises:
        UsageError: there is one, and ``overwrite`` is False.
    """
    for file in reports_in(folder, tool, rank):
        if not overwrite:
            raise UsageError(f"{file} exists: name another --out, or add --force-overwrite")
        file.unlink()


def import_recording(recording: Path, nsys: str) -> Path:
    """Replace a recording that nsys has not imported (``.qdstrm``) by its report, as nsys does it.

    Raises:
        UsageError: the importer is not installed with nsys, or cannot read the recording.
    """
    report = recording.with_suffix(NSYS.endings[0])
    importer = _find_importer(Path(nsys))
    if importer is None:
        raise UsageError(
            f"nsys left {recording} without a report, and {IMPORTER} is not installed with {nsys}: install the host"
            f" part of Nsight Systems too, or run on a machine that has it: {IMPORTER} -i {recording.name}"
        )
    print_message(f"importing {recording} ({recording.stat().st_size / 1e6:.1f} MB)")
    try:
        code, output = run_quietly([str(importer), "-i", str(recording.absolute())], recording.parent)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{importer} could not be run on {recording}: {error}") from None
    if not report.exists():
        reason = " ".join(output.split())[-300:] or f"exit code {code}"
        raise UsageError(f"{importer} could not import {recording}: {reason}")
    # The recording is the same in fifty times the space.
    recording.unlink()
    return report


def _find_importer(nsys: Path) -> Path | None:
    for path in (nsys, nsys.resolve()):
        for folder in list(path.parents)[:_FOLDERS_ABOVE]:
            for pattern in _IMPORTERS:
                if found := sorted(folder.glob(pattern)):
                    return found[-1]
    return None
