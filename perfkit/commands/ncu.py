"""``perfkit ncu``: some kernels of a training under Nsight Compute, without an edit, and what that says of each."""

from __future__ import annotations

import shlex

import typer

from perfkit._stderr import print_message
from perfkit.commands._nsight import (
    Every,
    ForceOverwrite,
    Module,
    Out,
    Plain,
    Print,
    Program,
    Schedule,
    StopAfter,
)
from perfkit.commands.reading import reading_bar
from perfkit.commands.run import parse_schedule
from perfkit.nsight_runner.installed_tools import cuda_here, find_tool
from perfkit.nsight_runner.ncu_options import LAUNCHES, NcuOptions, check, ncu_command, ncu_words
from perfkit.nsight_runner.target_program import plan_program
from perfkit.reports.console import stdout_console
from perfkit.reports.terminal import print_diagnosis


def ncu(
    program: Program,
    module: Module = False,
    out: Out = None,
    show: Print = False,
    kernel: str | None = typer.Option(
        None, "-k", "--kernel-name", help="Only kernels whose name has a match of this regular expression."
    ),
    launch_skip: int | None = typer.Option(
        None, "--launch-skip", help="Leave out so many of these kernels first.", min=0
    ),
    launch_count: int | None = typer.Option(
        None,
        "-c",
        "--launch-count",
        help=f"Look at so many kernels. Default: {LAUNCHES}, because each is run some ten times, with its memory saved"
        " and put back, and a step may launch thousands.",
        min=1,
    ),
    all_kernels: bool = typer.Option(False, "--all-kernels", help="Look at every kernel of the window: may take days."),
    nvtx_include: list[str] = typer.Option(
        [],
        "--nvtx-include",
        help="Only kernels in this NVTX range: perfkit@loss/ for perfkit.range('loss'). Repeatable.",
    ),
    section_set: str | None = typer.Option(
        None,
        "--set",
        help="Sections to measure: basic, detailed, full. Default: basic, with those for memory, stalls and roofline,"
        " which perfkit's rules read; full has more and takes longer.",
    ),
    sections: list[str] = typer.Option([], "--section", help="One more section; then only those. Repeatable."),
    replay_mode: str | None = typer.Option(
        None, "--replay-mode", help="kernel (default), application, range or app-range."
    ),
    clock_control: str | None = typer.Option(
        None,
        "--clock-control",
        help="base: ncu locks the clocks, so that runs compare (its default); none: as in training.",
    ),
    from_start: bool = typer.Option(
        False, "--profile-from-start", help="Begin with the first kernel, not with perfkit's window."
    ),
    schedule: Schedule = None,
    stop_after: StopAfter = None,
    ncu_args: str = typer.Option("", "--ncu-args", help="More options of ncu, as one quoted text."),
    force_overwrite: ForceOverwrite = False,
    plain: Plain = False,
    every: Every = False,
) -> int:
    """Look at some kernels of a training with Nsight Compute, and say what limits each.

    A Python program is run as `perfkit run` does it, and the kernels are those of its first window, when the model is
    warm. The command is printed, runs as it is printed, and its exit code is the program's. The table of kernels is
    written as CSV beside the report, and its diagnosis goes to stdout.

    For instance:

      perfkit ncu -k gemm -c 5 train.py

      perfkit ncu --nvtx-include perfkit@loss/ --stop-after 20 -- python train.py

      perfkit ncu --print --set full -- python train.py
    """
    # Load numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.nsight_runner.recording_session import (
        newest_report,
        no_report,
        open_session,
        program_first,
        record,
        run_options,
    )
    from perfkit.nsight_runner.report_diagnosis import diagnose_ncu, why_empty

    if schedule is not None:
        parse_schedule(schedule)
    options = NcuOptions(
        kernel=kernel,
        launch_skip=launch_skip,
        launch_count=launch_count,
        all_kernels=all_kernels,
        nvtx_include=tuple(nvtx_include),
        set=section_set,
        sections=tuple(sections),
        replay_mode=replay_mode,
        clock_control=clock_control,
        from_start=from_start,
        force_overwrite=force_overwrite,
        extra=ncu_args,
    )
    check(options)
    tool = None if show else find_tool("ncu")
    chosen = plan_program(program, module=module, plain=plain)
    # All that can be refused is, before a folder is made.
    words = ncu_words(options, tool, inside=chosen.inside)
    session = open_session("ncu", chosen, out=out, claim=not show, overwrite=force_overwrite)
    chosen = chosen.with_options(run_options(session, schedule, stop_after))
    command = ncu_command(words, chosen, tool, session.output)
    if not show and not cuda_here():
        print_message("there is no CUDA device here: ncu will find no kernel")
    if all_kernels:
        print_message(
            f"every kernel is run again and again: a step of thousands takes hours; --launch-count {LAUNCHES} bounds it"
        )
    if session.per_rank and kernel is None:
        print_message(
            "ncu runs one kernel at a time, so that one which waits for other ranks (nccl...) never ends: choose"
            " kernels with --kernel-name"
        )
    if tool is None:
        typer.echo(shlex.join(command))
        return 0
    code, reports = record(session, command)
    if session.reads_nothing:
        return code
    with program_first(code):
        if not reports:
            why = why_empty(session.folder, inside=chosen.inside, ranged=chosen.inside and not from_start)
            rights = "If it printed ERR_NVGPUCTRPERM, only an administrator may read the GPU's counters here"
            raise no_report(session, code, f"{why}. {rights}")
        report = newest_report(reports, tool)
        with reading_bar(f"reading {report.name}") as progress:
            answer = diagnose_ncu(report, progress)
        print_diagnosis(answer, stdout_console(), all=every)
    return code
