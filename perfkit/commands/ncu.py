"""``perfkit ncu``: profiles some kernels of a training with Nsight Compute, without an edit, and diagnoses them."""

from __future__ import annotations

from typing import Any

import click

from perfkit._stderr import print_message
from perfkit.commands._nsight_options import nsight_options
from perfkit.commands.run import parse_schedule
from perfkit.nsight_runner.installed_tools import cuda_here
from perfkit.nsight_runner.ncu_options import LAUNCHES, SETS, NcuOptions, check_ncu_options, ncu_words


# What follows PROGRAM belongs to it, options too.
@click.command(context_settings={"allow_interspersed_args": False})
@nsight_options
@click.option("-k", "--kernel-name", "kernel", help="Profile only kernels whose name matches this regular expression.")
@click.option("--launch-skip", metavar="N", type=click.IntRange(min=0), help="Skip the first N matching kernels.")
@click.option(
    "-c",
    "--launch-count",
    metavar="N",
    type=click.IntRange(min=1),
    help=f"Profile N kernels. Default: {LAUNCHES}, because each is run ten times and more, with its memory saved and"
    " restored, and a step may launch thousands.",
)
@click.option("--all-kernels", is_flag=True, help="Profile every kernel of the window. May take days.")
@click.option(
    "--nvtx-include",
    multiple=True,
    help="Profile only kernels in this NVTX range: perfkit@loss/ for perfkit.range('loss'). Repeatable.",
)
@click.option(
    "--set",
    help=f"Measure this set of sections: {', '.join(SETS)}. Default: basic, and the sections on memory, pipes,"
    " schedulers, stalls, access patterns and roofline that perfkit's rules read; full has more and takes longer.",
)
@click.option("--section", multiple=True, help="Measure this section instead of the default ones. Repeatable.")
@click.option(
    "--section-folder",
    metavar="DIR",
    multiple=True,
    help="Search this folder for your own sections and rules (.section and .py files) beside ncu's. Name them with"
    " --section. Repeatable.",
)
@click.option("--replay-mode", help="Replay kernel, application, range or app-range. Default: kernel.")
@click.option(
    "--clock-control",
    help="Lock the clocks so that runs compare (base), or leave them as in training (none). Default: base.",
)
@click.option(
    "--profile-from-start",
    "from_start",
    is_flag=True,
    help="Start with the first kernel, not with perfkit's window.",
)
@click.option("--ncu-args", "extra", default="", help="Pass more options to ncu, as one quoted string.")
def ncu(**values: Any) -> int:
    """Profile some kernels of a training with Nsight Compute, and report what limits each.

    A Python program is run as `perfkit run` does, and the kernels are those of its first window, when the model is
    warm. The command is printed and runs as printed. The exit code is the program's. The table of kernels is written
    as CSV next to the report, and its diagnosis goes to stdout.

    Examples:
      perfkit ncu -k gemm -c 5 train.py

      perfkit ncu --nvtx-include perfkit@loss/ --stop-after 20 -- python train.py

      perfkit ncu --print --set full -- python train.py

    PROGRAM: train.py, python train.py, torchrun ... train.py, or any command.
    """
    # These load numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.commands._nsight import plan_run, run_and_diagnose
    from perfkit.nsight_runner.report_diagnosis import diagnose_ncu, why_empty

    options = NcuOptions(**values)
    if options.schedule is not None:
        parse_schedule(options.schedule)
    check_ncu_options(options)
    run = plan_run("ncu", options, lambda tool, program: ncu_words(options, tool, inside=program.inside))
    if run.tool is not None and not cuda_here():
        print_message("there is no CUDA device here: ncu will find no kernel")
    if options.all_kernels:
        print_message(
            "every kernel is run several times: a step of thousands takes hours; limit it with --launch-count"
            f" {LAUNCHES}"
        )
    if run.session.per_rank and options.kernel is None:
        print_message(
            "ncu runs one kernel at a time, so a kernel that waits for other ranks (nccl...) never ends: select"
            " kernels with --kernel-name"
        )

    def why() -> str:
        ranged = run.inside and not options.from_start
        return (
            f"{why_empty(run.session.folder, inside=run.inside, ranged=ranged)}. If it printed ERR_NVGPUCTRPERM, only"
            " an administrator may read the GPU's counters here"
        )

    return run_and_diagnose(run, diagnose_ncu, why, show_all=options.show_all)
