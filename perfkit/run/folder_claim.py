"""Which folder a run is recorded into: the launch's name, the default folder, and never another launch's folder."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import time
import uuid
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import msgspec

from perfkit import _env
from perfkit._regular_file import read_regular
from perfkit._versioned_json import MAX_JSON_BYTES, decode_json
from perfkit.errors import UsageError
from perfkit.run.atomic import PART
from perfkit.run.ending import runs
from perfkit.run.reading import RankFolder, matching, rank_folders

#: Where runs are recorded unless a folder is named.
RUNS = Path("runs")
#: The file that holds the id of the launch whose folder this is, from before anything else is written.
_CLAIM = ".launch"
#: The id of a launch has 32 characters, or what a launcher calls its job.
_MAX_CLAIM_BYTES = 4096

_runs_of_this_process = itertools.count()


def launch_id() -> str:
    """One word for a new run of this launch, the same on all its ranks where the launcher is known.

    ``PERFKIT_LAUNCH_ID`` takes precedence; torchrun and srun name each launch; under Lightning's own launcher all ranks
    of a machine are children of rank 0, and spawned ranks are children of one process. A process may record several
    runs in a row: each rank counts its own, and all ranks count alike.
    """
    number = next(_runs_of_this_process)
    launch = _launch()
    if launch is None:
        return uuid.uuid4().hex[:12]
    return re.sub(r"[^\w.-]+", "-", "-".join(str(part) for part in (*launch, number or None) if part is not None))


def _launch() -> tuple[str | int | None, ...] | None:
    env = os.environ
    if env.get("PERFKIT_LAUNCH_ID"):
        return (env["PERFKIT_LAUNCH_ID"],)
    if "TORCHELASTIC_RUN_ID" in env:
        return (env["TORCHELASTIC_RUN_ID"], env.get("MASTER_PORT"), env.get("TORCHELASTIC_RESTART_COUNT"))
    if _env.world_size() == 1:
        return None
    if "SLURM_STEP_ID" in env:
        return ("slurm", env.get("SLURM_JOB_ID"), env["SLURM_STEP_ID"])
    if (parent := parent_process()) is not None:
        # Ranks that one process spawned, as Lightning's ddp_spawn does: no launcher has named them.
        return ("spawn", env.get("MASTER_PORT"), parent.pid)
    if "LOCAL_RANK" in env and "NODE_RANK" in env:
        # The port alone may be a fixed one, and then the next launch's too.
        first = os.getpid() if env["LOCAL_RANK"] == "0" else os.getppid()
        return ("local", env.get("MASTER_PORT"), env["NODE_RANK"], first)
    return None


def default_folder(launch: str) -> Path:
    """``runs/<script>-<date>-<time>``; with several ranks the launch id replaces the time, so that all ranks agree."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0] or "run"
    script = Path(main).stem
    if script == "__main__":
        script = Path(main).parent.name
    script = re.sub(r"[^\w.-]+", "-", script) or "run"
    when = launch if _env.world_size() > 1 else time.strftime("%Y%m%d-%H%M%S")
    return RUNS / f"{script}-{when}"


def _launches_in(folder: Path) -> set[str]:
    found = set()
    if (claimed := _claimed_by(folder)) is not None:
        found.add(claimed)
    for file in (folder / "run.json", *matching(folder, "rank-*/rank.json")):
        try:
            record = decode_json(read_regular(file, MAX_JSON_BYTES, inside=file.parent), Any)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError):
            # Damaged, but it is someone's run: never overwrite it.
            found.add("?")
            continue
        found.add(str(record.get("launch_id")) if isinstance(record, dict) else "?")
    return found


def check_folder(path: Path) -> None:
    """Refuse a path that no run can be recorded into, before anything starts.

    Whether it can be written is another question, which `claim_folder` asks: the path is not wrong then.

    Raises:
        UsageError: the path, or a folder above it, is a file.
    """
    existing = next((place for place in (path, *path.parents) if os.path.lexists(place)), path)
    if os.path.exists(existing) and not existing.is_dir():
        raise UsageError(f"a run is recorded into a folder, but {existing} is a file: choose another path")


def claim_folder(path: Path, launch: str, *, overwrite: bool, for_program: bool = False) -> Path:
    """Choose and create the folder of this launch: ``path``, or ``path-2``... where that holds another launch's run.

    With ``for_program`` no claim is written: the program that is started next records into the folder and claims it.

    Every rank decides alone, and all alike, because the other launches' runs are the same for all of them. Of launches
    that start at the same moment one gets the folder: the one whose `_CLAIM` is there first. A run that is still
    recording on this machine is never replaced.

    Raises:
        UsageError: see `check_folder`.
        OSError: the folder cannot be created or written.
    """
    check_folder(path)
    chosen, number = path, 1
    while not (_freed if for_program else _claimed)(chosen, launch, overwrite=overwrite):
        number += 1
        chosen = path.with_name(f"{path.name}-{number}")
    return chosen


def _freed(folder: Path, launch: str, *, overwrite: bool) -> bool:
    """Create the folder, or make room in it; returns whether no other launch has it."""
    if _launches_in(folder) - {launch}:
        if not overwrite or _is_recording(folder):
            return False
        clear_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return True


def _claimed(folder: Path, launch: str, *, overwrite: bool) -> bool:
    if not _freed(folder, launch, overwrite=overwrite):
        return False
    # Ranks of one launch may have the same process id, on other machines.
    claim, mine = folder / _CLAIM, folder / f"{PART}{uuid.uuid4().int}-{launch}"
    mine.write_text(launch)
    try:
        # A link is made or not: so one of several launches makes it, also on a network file system (open(2), O_EXCL).
        os.link(mine, claim)
    except FileExistsError:
        return _claimed_by(folder) == launch
    except FileNotFoundError:
        return _claimed(folder, launch, overwrite=overwrite)  # a run that begins here has removed unfinished files
    except OSError:
        return True  # a file system without links: launches at the same moment are not told apart
    finally:
        mine.unlink(missing_ok=True)
    return True


def _claimed_by(folder: Path) -> str | None:
    """The launch id in the folder's claim; "?" if the claim cannot be read, None if there is none."""
    try:
        return read_regular(folder / _CLAIM, _MAX_CLAIM_BYTES, inside=folder).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return "?"


def _is_recording(folder: Path) -> bool:
    """Whether a process of this machine records into ``folder``."""
    ranks = (RankFolder(rank, index).rank for index, rank in rank_folders(folder).items())
    return any(rank is not None and rank.ending is None and runs(rank) for rank in ranks)


def clear_folder(folder: Path) -> None:
    """Remove the files that perfkit wrote into a folder, and nothing else."""
    for rank in folder.glob("rank-*"):
        shutil.rmtree(rank)
    unfinished = (path.name for path in folder.glob(f"{PART}*"))
    for name in (_CLAIM, "run.json", "diagnosis.json", "figures.json", "report.html", "trigger", *unfinished):
        (folder / name).unlink(missing_ok=True)
