"""``perfkit ncu``: profiles some kernels of a training with Nsight Compute, without an edit, and diagnoses them."""

from __future__ import annotations

from perfkit._stderr import print_message
from perfkit.commands._struct_options import takes_options
from perfkit.commands.run import parse_schedule
from perfkit.nsight_runner.installed_tools import cuda_here
from perfkit.nsight_runner.ncu_options import LAUNCHES, NcuOptions, check_ncu_options, ncu_words

#: Everything after PROGRAM belongs to the program, options too.
CONTEXT = {"allow_interspersed_args": False}


@takes_options(NcuOptions)
def ncu(options: NcuOptions) -> int:
    """Profile some kernels of a training with Nsight Compute, and report what limits each.

    A Python program is run as `perfkit run` does, and the kernels are those of its first window, when the model is
    warm. The command is printed and runs as printed. The exit code is the program's. The table of kernels is written
    as CSV next to the report, and its diagnosis goes to stdout.

    Examples:
      perfkit ncu -k gemm -c 5 train.py

      perfkit ncu --nvtx-include perfkit@loss/ --stop-after 20 -- python train.py

      perfkit ncu --print --set full -- python train.py
    """
    # These load numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.commands._nsight import plan_run, run_and_diagnose
    from perfkit.nsight_runner.report_diagnosis import diagnose_ncu, why_empty

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
