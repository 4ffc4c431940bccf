"""The options of ``ncu``: which kernels are profiled, how many, and what is measured of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import typer

from perfkit.errors import UsageError
from perfkit.nsight_runner._common_options import NsightOptions, ToolOption, split_words, supported_words
from perfkit.nsight_runner.installed_tools import InstalledTool

REPLAY_MODES = ("kernel", "application", "range", "app-range")

#: Number of kernels that are profiled by default. Each is run some ten times for the sections below, with its memory
#: saved and restored, while a training step launches hundreds to thousands: ncu's own default, all of them, turns
#: minutes into days. This many are the forward pass of some layers.
LAUNCHES = 50

#: The set basic (throughput, occupancy, launch) and what perfkit's rules read in addition: memory, stalls, roofline.
#: The set full has all of these and many more, for which each kernel is run more often.
_SET = "basic"
_SECTIONS = ("MemoryWorkloadAnalysis", "WarpStateStats", "SpeedOfLight_RooflineChart")


class NcuOptions(NsightOptions, frozen=True, kw_only=True):
    """The options of `perfkit ncu`."""

    kernel: Annotated[
        str | None,
        typer.Option("-k", "--kernel-name", help="Profile only kernels whose name matches this regular expression."),
    ] = None
    launch_skip: Annotated[int | None, typer.Option(help="Skip the first N matching kernels.", metavar="N", min=0)] = (
        None
    )
    launch_count: Annotated[
        int | None,
        typer.Option(
            "-c",
            "--launch-count",
            help=f"Profile N kernels. Default: {LAUNCHES}, because each is run some ten times, with its memory saved"
            " and restored, and a step may launch thousands.",
            metavar="N",
            min=1,
        ),
    ] = None
    all_kernels: Annotated[
        bool, typer.Option("--all-kernels", help="Profile every kernel of the window. May take days.")
    ] = False
    nvtx_include: Annotated[
        list[str],
        typer.Option(
            help="Profile only kernels in this NVTX range: perfkit@loss/ for perfkit.range('loss'). Repeatable.",
        ),
    ] = []
    set: Annotated[
        str | None,
        typer.Option(
            help="Measure this set of sections: basic, detailed or full. Default: basic, and the sections on memory,"
            " stalls and roofline that perfkit's rules read; full has more and takes longer.",
        ),
    ] = None
    section: Annotated[
        list[str], typer.Option(help="Measure this section instead of the default ones. Repeatable.")
    ] = []
    replay_mode: Annotated[
        str | None, typer.Option(help="Replay kernel, application, range or app-range. Default: kernel.")
    ] = None
    clock_control: Annotated[
        str | None,
        typer.Option(
            help="Lock the clocks so that runs compare (base), or leave them as in training (none). Default: base.",
        ),
    ] = None
    from_start: Annotated[
        bool, typer.Option("--profile-from-start", help="Start with the first kernel, not with perfkit's window.")
    ] = False
    extra: Annotated[str, typer.Option("--ncu-args", help="Pass more options to ncu, as one quoted string.")] = ""


def check_ncu_options(options: NcuOptions) -> None:
    """Refuse invalid options.

    Raises:
        UsageError: the message names the invalid option and what to do.
    """
    if options.kernel is not None:
        try:
            re.compile(options.kernel)
        except re.error as error:
            raise UsageError(f"--kernel-name takes a regular expression, got {options.kernel!r}: {error}") from None
    if options.all_kernels and options.launch_count is not None:
        raise UsageError("--all-kernels and --launch-count exclude each other: give one of them")
    if options.replay_mode is not None and options.replay_mode not in REPLAY_MODES:
        raise UsageError(f"--replay-mode takes {', '.join(REPLAY_MODES)}, got {options.replay_mode!r}")
    if options.clock_control not in (None, "base", "none"):
        raise UsageError(f"--clock-control takes base or none, got {options.clock_control!r}")


def ncu_words(options: NcuOptions, tool: InstalledTool | None, *, inside: bool) -> list[str]:
    """The options of ncu, without its output.

    Args:
        options: What the user requested.
        tool: The installed ncu; None to assume that it has all options.
        inside: Whether perfkit records in the program.

    Raises:
        UsageError: as `check_ncu_options`, or the tool lacks a requested option.
    """
    check_ncu_options(options)
    return [
        *supported_words(list(_tool_options(options, inside)), tool),
        *split_words("--ncu-args", options.extra),
    ]


def _tool_options(options: NcuOptions, inside: bool) -> Iterator[ToolOption]:
    def option(name: str, *values: object, requested: object = True) -> ToolOption:
        return ToolOption((f"--{name}", *map(str, values)), bool(requested))

    # The program is a child of perfkit run's Python, or of a launcher.
    yield option("target-processes", "all", requested=False)
    yield option("set", options.set or _SET, requested=options.set)
    for section in options.section or (_SECTIONS if options.set is None else ()):
        yield option("section", section, requested=options.section)
    if options.kernel is not None:
        yield option("kernel-name", f"regex:{options.kernel}")
    for name in ("launch-skip", "replay-mode", "clock-control"):
        if (value := getattr(options, name.replace("-", "_"))) is not None:
            yield option(name, value)
    if not options.all_kernels:
        yield option("launch-count", LAUNCHES if options.launch_count is None else options.launch_count)
    if options.nvtx_include:
        yield option("nvtx")
        for name in options.nvtx_include:
            yield option("nvtx-include", name)
    if inside and not options.from_start:
        # perfkit starts the profiling with the window; in a program without perfkit nothing would.
        yield option("profile-from-start", "off")
    if options.force_overwrite:
        yield option("force-overwrite")
