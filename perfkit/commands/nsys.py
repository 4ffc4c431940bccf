"""``perfkit nsys``: records some steps of a training with Nsight Systems, without an edit, and diagnoses them."""

from __future__ import annotations

from typing import Any

import click

from perfkit._stderr import print_message
from perfkit.commands._nsight_options import nsight_options
from perfkit.commands.run import parse_schedule
from perfkit.nsight_runner.installed_tools import cuda_here
from perfkit.nsight_runner.nsys_options import (
    TRACE_CUDA,
    TRACE_HOST,
    NsysOptions,
    capture_range_of,
    check_nsys_options,
    nsys_words,
)


# What follows PROGRAM belongs to it, options too.
@click.command(context_settings={"allow_interspersed_args": False})
@nsight_options
@click.option(
    "--capture-range",
    help="Start the recording with: cudaProfilerApi (perfkit calls it for each window; the default with CUDA), nvtx"
    " (the range perfkit.window; works without CUDA), none (record the whole program and cut the report to the window;"
    " the default without CUDA).",
)
@click.option(
    "--nvtx-capture", help="Record another range with --capture-range nvtx, given as range@domain or range@*."
)
@click.option(
    "--capture-range-end",
    help="At the end of a window: stop (default), repeat[:N] (one report per window; default with several windows),"
    " none, or stop-shutdown and repeat-shutdown:N, which need --kill.",
)
@click.option(
    "--kill",
    help="Send this signal to the program when the recording ends: none, sigterm, sigkill, or a number. Default: none,"
    " so that training continues.",
)
@click.option("--delay", metavar="N", type=click.IntRange(min=0), help="Start the recording after N seconds.")
@click.option("--duration", metavar="N", type=click.IntRange(min=1), help="Record for N seconds.")
@click.option("-t", "--trace", help=f"Trace these APIs. Default: {TRACE_CUDA} with CUDA, {TRACE_HOST} without.")
@click.option("--nvtx-domain-include", multiple=True, help="Record only this NVTX domain. Repeatable.")
@click.option("--nvtx-domain-exclude", multiple=True, help="Skip this NVTX domain. Repeatable.")
@click.option("-s", "--sample", help="Sample the CPU. Default: none.")
@click.option("--cpuctxsw", help="Trace CPU context switches. Default: none.")
@click.option("--nsys-args", "extra", default="", help="Pass more options to nsys profile, as one quoted string.")
def nsys(**values: Any) -> int:
    """Record a few steps of a training with Nsight Systems, and diagnose the report.

    A Python program is run as `perfkit run` does: steps, phases and ranges are recorded without an edit, and each
    window opens nsys' capture range. With torchrun each rank has its own nsys. The command is printed and runs as
    printed. The exit code is the program's; the diagnosis goes to stdout.

    Examples:
      perfkit nsys train.py --epochs 3

      perfkit nsys --schedule 100,5,5 --stop-after 120 -- python train.py

      perfkit nsys --print -- torchrun --nproc-per-node 8 train.py

    PROGRAM: train.py, python train.py, torchrun ... train.py, or any command.
    """
    # These load numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.commands._nsight import plan_run, run_and_diagnose
    from perfkit.nsight_runner.report_diagnosis import diagnose_nsys, why_empty

    options = NsysOptions(**values)
    windows = parse_schedule(options.schedule).repeat if options.schedule is not None else 1
    cuda = cuda_here()
    check_nsys_options(options, cuda=cuda)
    ranged = capture_range_of(options, cuda=cuda) != "none"
    run = plan_run(
        "nsys",
        options,
        lambda tool, program: nsys_words(options, tool, windows=windows, inside=program.inside, cuda=cuda),
    )
    if not ranged and options.duration is None and options.stop_after is None:
        print_message(_whole_program(run.inside))
    folder, inside = run.session.folder, run.inside
    return run_and_diagnose(
        run,
        lambda report, progress: diagnose_nsys(report, folder, inside=inside, ranged=ranged, progress=progress),
        lambda: why_empty(folder, inside=inside, ranged=ranged),
        show_all=options.show_all,
    )


def _whole_program(inside: bool) -> str:
    """Why recording a whole program is mostly a mistake, and how to limit it."""
    text = (
        "nsys records the whole program, including its start: the report grows with every call, to gigabytes within"
        " minutes, and the program is slower throughout"
    )
    if not inside:
        return f"{text}. Limit it with --duration SECONDS"
    return (
        f"{text}; only the window in it is diagnosed. Limit it with --capture-range nvtx, --stop-after STEPS or"
        " --duration SECONDS"
    )
