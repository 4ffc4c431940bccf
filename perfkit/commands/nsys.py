"""``perfkit nsys``: a training under Nsight Systems, bounded and without an edit, and what its report says."""

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
from perfkit.nsight_runner.nsys_options import NsysOptions, capture_range_of, check, nsys_command, nsys_words
from perfkit.nsight_runner.target_program import plan_program
from perfkit.reports.console import stdout_console
from perfkit.reports.terminal import print_diagnosis


def nsys(
    program: Program,
    module: Module = False,
    out: Out = None,
    show: Print = False,
    schedule: Schedule = None,
    stop_after: StopAfter = None,
    capture_range: str | None = typer.Option(
        None,
        "--capture-range",
        help="What opens the recording: cudaProfilerApi (perfkit does, with each window; the default with CUDA), nvtx"
        " (the range perfkit.window; works without CUDA too), none (the whole program, cut to the window afterwards).",
    ),
    nvtx_capture: str | None = typer.Option(
        None, "--nvtx-capture", help="With --capture-range nvtx: another range, as range@domain, or range@*."
    ),
    capture_range_end: str | None = typer.Option(
        None,
        "--capture-range-end",
        help="When a window is over: stop (default), repeat[:N] (a report for each; default with several windows),"
        " none, or stop-shutdown and repeat-shutdown:N, which need --kill.",
    ),
    kill: str | None = typer.Option(
        None,
        "--kill",
        help="What the program gets when the recording ends: none (default: it trains on), sigterm, sigkill, a number.",
    ),
    delay: int | None = typer.Option(None, "--delay", help="Record from so many seconds on.", min=0),
    duration: int | None = typer.Option(None, "--duration", help="Record for so many seconds.", min=1),
    trace: str | None = typer.Option(
        None, "-t", "--trace", help="What to record. Default: cuda,nvtx,osrt,cudnn,cublas; nvtx,osrt without CUDA."
    ),
    domains: list[str] = typer.Option([], "--nvtx-domain-include", help="Record only this NVTX domain. Repeatable."),
    no_domains: list[str] = typer.Option([], "--nvtx-domain-exclude", help="Leave out this NVTX domain. Repeatable."),
    sample: str | None = typer.Option(None, "-s", "--sample", help="CPU sampling. Default: none."),
    cpuctxsw: str | None = typer.Option(None, "--cpuctxsw", help="CPU context switches. Default: none."),
    nsys_args: str = typer.Option("", "--nsys-args", help="More options of nsys profile, as one quoted text."),
    force_overwrite: ForceOverwrite = False,
    plain: Plain = False,
    every: Every = False,
) -> int:
    """Run a training under Nsight Systems, for a few steps of it, and say what its report tells.

    A Python program is run as `perfkit run` does it: steps, phases and ranges are recorded without an edit, and each
    window opens nsys' capture range. Behind torchrun each rank has an nsys of its own. The command is printed, runs as
    it is printed, and its exit code is the program's; the diagnosis goes to stdout.

    For instance:

      perfkit nsys train.py --epochs 3

      perfkit nsys --schedule 100,5,5 --stop-after 120 -- python train.py

      perfkit nsys --print -- torchrun --nproc-per-node 8 train.py
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
    from perfkit.nsight_runner.report_diagnosis import diagnose_nsys, why_empty

    windows = parse_schedule(schedule).repeat if schedule is not None else 1
    options = NsysOptions(
        trace=trace,
        capture_range=capture_range,
        nvtx_capture=nvtx_capture,
        capture_range_end=capture_range_end,
        kill=kill,
        delay=delay,
        duration=duration,
        domains=tuple(domains),
        no_domains=tuple(no_domains),
        sample=sample,
        cpuctxsw=cpuctxsw,
        force_overwrite=force_overwrite,
        windows=windows,
        extra=nsys_args,
    )
    cuda = cuda_here()
    check(options, cuda=cuda)
    ranged = capture_range_of(options, cuda=cuda) != "none"
    tool = None if show else find_tool("nsys")
    chosen = plan_program(program, module=module, plain=plain)
    # All that can be refused is, before a folder is made.
    words = nsys_words(options, tool, inside=chosen.inside, cuda=cuda)
    session = open_session("nsys", chosen, out=out, claim=not show, overwrite=force_overwrite)
    chosen = chosen.with_options(run_options(session, schedule, stop_after))
    command = nsys_command(words, chosen, tool, session.output)
    if not ranged and duration is None and stop_after is None:
        print_message(_whole(chosen.inside))
    if tool is None:
        typer.echo(shlex.join(command))
        return 0
    code, reports = record(session, command)
    if session.reads_nothing:
        return code
    with program_first(code):
        if not reports:
            raise no_report(session, code, why_empty(session.folder, inside=chosen.inside, ranged=ranged))
        report = newest_report(reports, tool)
        with reading_bar(f"reading {report.name}") as progress:
            answer = diagnose_nsys(report, session.folder, inside=chosen.inside, ranged=ranged, progress=progress)
        print_diagnosis(answer, stdout_console(), all=every)
    return code


def _whole(inside: bool) -> str:
    """Why recording a whole program is a mistake, mostly, and what bounds it."""
    text = (
        "nsys records the whole program, start-up too: its report grows with every call, to gigabytes in minutes, and"
        " the program is slower all the while"
    )
    if not inside:
        return f"{text}. Bound it with --duration SECONDS"
    return (
        f"{text}; what is diagnosed is the window in it. Bound it with --capture-range nvtx, --stop-after STEPS or"
        " --duration SECONDS"
    )
