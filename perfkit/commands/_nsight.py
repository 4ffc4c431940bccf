"""What `perfkit nsys` and `perfkit ncu` do alike: plan a run, print or start it, and print its diagnosis."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from perfkit._env import NsightName
from perfkit.commands._progress import reading_bar
from perfkit.diagnosis import Diagnosis
from perfkit.errors import UsageError
from perfkit.nsight_runner._common_options import NsightOptions
from perfkit.nsight_runner.installed_tools import InstalledTool, find_tool
from perfkit.nsight_runner.recording_session import (
    RecordingSession,
    build_command,
    newest_report,
    open_session,
    program_first,
    record,
)
from perfkit.nsight_runner.target_program import TargetProgram, plan_program
from perfkit.reports.console import stdout_console
from perfkit.reports.terminal import print_diagnosis
from perfkit.trace.file_text import Progress


class NsightRun(NamedTuple):
    """A planned run; ``tool`` is None if the command is only printed."""

    tool: InstalledTool | None
    inside: bool
    session: RecordingSession
    command: list[str]


def plan_run(
    name: NsightName, options: NsightOptions, words_of: Callable[[InstalledTool | None, TargetProgram], list[str]]
) -> NsightRun:
    """Find the tool, choose the folder and build the command; ``words_of`` gives the options of the tool.

    Raises:
        UsageError: the run is not possible as requested. No folder is created then.
    """
    tool = None if options.print_only else find_tool(name)
    program = plan_program(options.program, module=options.module, plain=options.plain)
    words = words_of(tool, program)
    session = open_session(
        name, program, out=options.out, claim=not options.print_only, overwrite=options.force_overwrite
    )
    run_options = ["--schedule", options.schedule] if options.schedule is not None else []
    run_options += ["--stop-after", str(options.stop_after)] if options.stop_after is not None else []
    return NsightRun(tool, program.inside, session, build_command(session, words, program, tool, run_options))


def run_and_diagnose(
    run: NsightRun,
    diagnose: Callable[[Path, Progress], Diagnosis],
    why_empty: Callable[[], str],
    *,
    show_all: bool,
) -> int:
    """Print the command, or run it and print the diagnosis of its newest report; the program's exit code.

    Args:
        run: The run.
        diagnose: Diagnoses a report.
        why_empty: The reason why there may be no report.
        show_all: Whether to print all findings.

    Raises:
        PerfkitError: the program succeeded and its report is missing or cannot be diagnosed.
    """
    if run.tool is None:
        click.echo(shlex.join(run.command))
        return 0
    code, reports = record(run.session, run.command)
    if not run.session.is_rank_0:
        return code
    with program_first(code):
        if not reports:
            ended = f"{run.session.tool} ended with exit code {code} and left no report in {run.session.folder}"
            raise UsageError(f"{ended}: {why_empty()}")
        report = newest_report(reports, run.tool)
        with reading_bar(f"reading {report.name}") as progress:
            diagnosis = diagnose(report, progress)
        print_diagnosis(diagnosis, stdout_console(), all=show_all)
    return code
