"""What a tool left in a folder: its reports, and recordings that it has not made a report of."""

from __future__ import annotations

import glob
import subprocess
from pathlib import Path

from perfkit._env import NsightName
from perfkit._stderr import print_message
from perfkit.errors import UsageError
from perfkit.trace import NSYS_OWN
from perfkit.trace.nsight.ncu_export import NCU_OWN

#: What their reports end with, today and before 2021; nsys' recordings, which are no reports yet, too.
ENDINGS: dict[NsightName, tuple[str, ...]] = {"nsys": NSYS_OWN, "ncu": NCU_OWN}

IMPORTER = "QdstrmImporter"
#: Where NVIDIA's packages and Debian's have the importer, seen from each folder above nsys.
_IMPORTERS = (IMPORTER, f"host-linux*/{IMPORTER}", f"nsight-systems*/host-linux*/{IMPORTER}")
_FOLDERS_ABOVE = 5

#: An hour, as for an export: a recording of 10 GB takes some minutes.
_MOST_SECONDS = 3600


def output_of(tool: NsightName, folder: Path, rank: str | None) -> str:
    """What the tool's ``-o`` takes; ``rank`` is how a rank is named, None where there is only one."""
    return str(folder / (tool if rank is None else f"{tool}-rank-{rank}"))


def reports_in(folder: Path, tool: NsightName, rank: str | None = None) -> list[Path]:
    """The reports of a tool in a folder, of one rank where one is named, in the order in which they were made."""
    begin = f"{tool}-rank-{rank}" if rank is not None else tool
    found = [
        file
        for ending in ENDINGS[tool]
        for file in folder.glob(f"{glob.escape(begin)}*{ending}")
        # "nsys-rank-1" is not the beginning of "nsys-rank-10".
        if not file.name[len(begin) : len(begin) + 1].isdigit()
    ]
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name))


def check_free(folder: Path, tool: NsightName, rank: str | None, *, overwrite: bool) -> None:
    """Refuse a folder with reports that would be lost, or taken for this run's.

    Raises:
        UsageError: there is one, and it may not be replaced.
    """
    for file in reports_in(folder, tool, rank):
        if not overwrite:
            raise UsageError(f"{file} exists: name another --out, or add --force-overwrite")
        file.unlink()


def import_recording(recording: Path, nsys: str) -> Path:
    """Make the report of a recording that nsys has not imported (``.qdstrm``), in its place, as nsys does it.

    Raises:
        UsageError: the importer is not beside nsys, or cannot read it.
    """
    report = recording.with_suffix(ENDINGS["nsys"][0])
    importer = _find_importer(Path(nsys))
    if importer is None:
        raise UsageError(
            f"nsys left {recording} without a report, and its {IMPORTER} is not beside {nsys}: install the host part of"
            f" Nsight Systems too, or run on a machine that has it: {IMPORTER} -i {recording.name}"
        )
    print_message(f"importing {recording} ({recording.stat().st_size / 1e6:.1f} MB)")
    try:
        done = subprocess.run(
            [str(importer), "-i", str(recording.absolute())],
            cwd=recording.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOST_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{importer} could not be run on {recording}: {error}") from None
    if not report.exists():
        said = " ".join((done.stdout + done.stderr).split())[-300:]
        raise UsageError(f"{importer} could not import {recording}: {said or f'exit code {done.returncode}'}")
    # The same in fifty times the space.
    recording.unlink()
    return report


def _find_importer(nsys: Path) -> Path | None:
    for place in (nsys, nsys.resolve()):
        for folder in list(place.parents)[:_FOLDERS_ABOVE]:
            for pattern in _IMPORTERS:
                if found := sorted(folder.glob(pattern)):
                    return found[-1]
    return None
