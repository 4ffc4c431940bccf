"""One run of a program under nsys or ncu: its folder, its command, and the reports that it leaves."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from perfkit import _env
from perfkit._stderr import print_message
from perfkit.errors import PerfkitError
from perfkit.nsight_runner.foreground_process import run_in_foreground
from perfkit.nsight_runner.installed_tools import InstalledTool
from perfkit.nsight_runner.report_files import import_recording, remove_old_reports, reports_in
from perfkit.nsight_runner.target_program import TargetProgram
from perfkit.run.folder_claim import claim_folder, launch_id
from perfkit.trace.nsight.report_export import RECORDING

#: The rank in a file name: the tools replace it by the environment variable, on each rank.
_RANK = "%q{RANK}"


class RecordingSession(NamedTuple):
    """A run of a program under ``tool``, recorded into ``folder``, which also has perfkit's own run."""

    tool: _env.NsightName
    folder: Path
    #: Whether each rank has its own tool: RANK is set here, or the launcher will set it.
    per_rank: bool

    @property
    def output(self) -> str:
        """The value of the tool's output option, without an ending."""
        return str(self.folder / (f"{self.tool}-rank-{_RANK}" if self.per_rank else self.tool))

    @property
    def is_rank_0(self) -> bool:
        """Whether this rank diagnoses the report: windows are recorded on rank 0."""
        return os.environ.get("RANK", "0") == "0"


def open_session(
    tool: _env.NsightName, program: TargetProgram, *, out: str | None, claim: bool, overwrite: bool
) -> RecordingSession:
    """Choose the folder of a run, and create it if ``claim``.

    Raises:
        UsageError: it cannot be created, or has reports that may not be replaced.
    """
    launch = launch_id()
    when = launch if _env.world_size() > 1 else time.strftime("%Y%m%d-%H%M%S")
    folder = Path(out) if out is not None else Path("runs") / f"{program.name}-{when}"
    if claim:
        claimed = claim_folder(folder, launch, overwrite=overwrite, for_program=True)
        if claimed != folder:
            print_message(f"{folder} has another run; this one is recorded into {claimed}")
        folder = claimed
        remove_old_reports(folder, tool, os.environ.get("RANK"), overwrite=overwrite)
    return RecordingSession(tool, folder, bool(program.launcher) or "RANK" in os.environ)


def build_command(
    session: RecordingSession,
    words: Sequence[str],
    program: TargetProgram,
    tool: InstalledTool | None,
    run_options: Sequence[str] = (),
) -> list[str]:
    """The complete command.

    Args:
        session: Where the report goes.
        words: The tool's options, from `nsys_words` or `ncu_words`.
        program: What the tool starts.
        tool: The installed tool; None for the one on the PATH.
        run_options: More options for the `perfkit run` in the program. Its verdict is not printed, because that of the
            tool's report has more.
    """
    path = tool.path if tool is not None else session.tool
    if session.tool == "nsys":
        words = ("profile", *words, f"--output={session.output}")
    else:
        words = (*words, "--export", session.output)
    program = program.with_options(["--quiet", "--out", str(session.folder), *run_options])
    return [*program.launcher, path, *words, *program.words]


def record(session: RecordingSession, command: Sequence[str]) -> tuple[int, list[Path]]:
    """Print and run the command; its exit code, and the reports of this rank, else of the lowest rank that has any."""
    print_message(f"running: {shlex.join(command)}")
    code = run_in_foreground(command)
    if not session.per_rank:
        return code, reports_in(session.folder, session.tool)
    if (rank := os.environ.get("RANK")) is not None:
        return code, reports_in(session.folder, session.tool, rank)
    names = (file.name for file in reports_in(session.folder, session.tool))
    ranks = sorted({match[1] for name in names if (match := re.match(r"\w+-rank-(\d+)", name))}, key=int)
    if not ranks:
        return code, []
    if len(ranks) > 1:
        print_message(f"reports of {len(ranks)} ranks are in {session.folder}; that of rank {ranks[0]} is diagnosed")
    return code, reports_in(session.folder, session.tool, ranks[0])


def newest_report(reports: Sequence[Path], tool: InstalledTool) -> Path:
    """The newest report of one rank, imported if the tool has not done so; the number of others is printed.

    Raises:
        UsageError: it cannot be imported.
    """
    newest = reports[-1]
    others = [file for file in reports if file.stem != newest.stem]
    if others:
        print_message(f"{len(others)} more reports are in {newest.parent}; the newest, {newest.name}, is diagnosed")
    return import_recording(newest, tool.path) if newest.suffix == RECORDING else newest


@contextmanager
def program_first(code: int) -> Iterator[None]:
    """Let the program's exit code win: if the program failed, an error of perfkit is only printed."""
    try:
        yield
    except PerfkitError as error:
        if not code:
            raise
        print_message(str(error))
