"""One run of a program under a tool: where it is recorded, how the tool is started, and which reports it left."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from perfkit import _env
from perfkit._stderr import print_message
from perfkit.errors import PerfkitError, UsageError
from perfkit.nsight_runner.foreground_process import run_command
from perfkit.nsight_runner.installed_tools import Tool
from perfkit.nsight_runner.report_files import check_free, import_recording, output_of, reports_in
from perfkit.nsight_runner.target_program import Program
from perfkit.run.folder_claim import claim_folder, launch_id
from perfkit.trace.nsight.report_export import RECORDING

#: How a tool is told to put the rank into a name: it reads the variable itself, on each rank.
_RANK = "%q{RANK}"


class Session(NamedTuple):
    """A run of a program under ``tool``, recorded into ``folder``, where perfkit's own run lies too."""

    tool: _env.NsightName
    folder: Path
    #: Whether there are several ranks, each with a tool of its own: RANK is set here, or the launcher will set it.
    per_rank: bool

    @property
    def output(self) -> str:
        """What the tool's option for its report takes, without an ending."""
        return output_of(self.tool, self.folder, _RANK if self.per_rank else None)

    @property
    def reads_nothing(self) -> bool:
        """Whether this is a rank that leaves the diagnosis to rank 0: windows are recorded there."""
        return os.environ.get("RANK", "0") != "0"


def open_session(tool: _env.NsightName, program: Program, *, out: str | None, claim: bool, overwrite: bool) -> Session:
    """Choose the folder of a run, and take it where ``claim`` says so.

    Raises:
        UsageError: it cannot be made, or holds reports that may not be replaced.
    """
    launch = launch_id()
    when = launch if _env.world_size() > 1 else time.strftime("%Y%m%d-%H%M%S")
    folder = Path(out) if out is not None else Path("runs") / f"{program.name}-{when}"
    if claim:
        chosen = claim_folder(folder, launch, overwrite=overwrite)
        if chosen != folder:
            print_message(f"{folder} holds another run; this one is recorded into {chosen}")
        folder = chosen
        check_free(folder, tool, os.environ.get("RANK"), overwrite=overwrite)
    return Session(tool, folder, bool(program.launcher) or "RANK" in os.environ)


def run_options(session: Session, schedule: str | None, stop_after: int | None) -> list[str]:
    """Options for the `perfkit run` in the program: it tells its verdict to nobody, for the tool's report has more."""
    options = ["--quiet", "--out", str(session.folder)]
    options += ["--schedule", schedule] if schedule is not None else []
    return options + (["--stop-after", str(stop_after)] if stop_after is not None else [])


def record(session: Session, command: Sequence[str]) -> tuple[int, list[Path]]:
    """Say and run the command; its exit code, and what the tool left: of this rank, else of the lowest that has any."""
    print_message(f"running: {shlex.join(command)}")
    code = run_command(command)
    if not session.per_rank:
        return code, reports_in(session.folder, session.tool)
    if (rank := os.environ.get("RANK")) is not None:
        return code, reports_in(session.folder, session.tool, rank)
    ranks = sorted(_ranks(session), key=int)
    if not ranks:
        return code, []
    if len(ranks) > 1:
        print_message(f"reports of {len(ranks)} ranks are in {session.folder}; rank {ranks[0]}'s is diagnosed")
    return code, reports_in(session.folder, session.tool, ranks[0])


def _ranks(session: Session) -> set[str]:
    names = (file.name.removeprefix(f"{session.tool}-rank-") for file in reports_in(session.folder, session.tool))
    digits = ("".join(character for character in name.split(".")[0] if character.isdigit()) for name in names)
    return {rank for rank in digits if rank}


def newest_report(reports: Sequence[Path], tool: Tool) -> Path:
    """The last report of one rank, imported where the tool has not done it; the others are named.

    Raises:
        UsageError: it cannot be imported.
    """
    last = reports[-1]
    others = [file for file in reports if file.stem != last.stem]
    if others:
        print_message(f"{len(others)} more reports are in {last.parent}; the last, {last.name}, is diagnosed")
    return import_recording(last, tool.path) if last.suffix == RECORDING else last


def no_report(session: Session, code: int, why: str) -> UsageError:
    """What to raise where the tool left nothing."""
    ended = f"{session.tool} ended with exit code {code} and left no report in {session.folder}"
    return UsageError(f"{ended}: {why}")


@contextmanager
def program_first(code: int) -> Iterator[None]:
    """What the program did counts first: where it failed, an error of perfkit's is said, and its exit code stays."""
    try:
        yield
    except PerfkitError as error:
        if not code:
            raise
        print_message(str(error))
