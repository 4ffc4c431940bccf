"""The options of ``ncu``: which kernels are profiled, how many, and what is measured of each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfkit._stderr import print_message
from perfkit.errors import UsageError
from perfkit.nsight_runner._common_options import NsightOptions, ToolOption, split_words, supported_words
from perfkit.nsight_runner.installed_tools import InstalledTool, listed_names

REPLAY_MODES = ("kernel", "application", "range", "app-range")

#: Number of kernels that are profiled by default. Each is run ten times and more for the sections below, with its
#: memory saved and restored, while a training step launches hundreds to thousands: ncu's own default, all of them,
#: turns minutes into days. This many are the forward pass of some layers.
LAUNCHES = 50

#: The set basic (throughput, occupancy, launch) and what perfkit's rules read in addition: memory, pipes, schedulers,
#: stalls, access patterns, roofline. The set full has all of these and many more, for which each kernel is run more
#: often.
_SET = "basic"
_SECTIONS = (
    "MemoryWorkloadAnalysis",
    "ComputeWorkloadAnalysis",
    "SchedulerStats",
    "WarpStateStats",
    "SourceCounters",
    "SpeedOfLight_RooflineChart",
)

#: The sets and sections of ncu 2023 to 2026. The installed ncu is asked about any other name.
SETS = ("basic", "detailed", "full", "roofline", "nvlink", "pmsampling")
SECTIONS = (
    "C2CLink",
    "ComputeWorkloadAnalysis",
    "InstructionStats",
    "LaunchStats",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Chart",
    "MemoryWorkloadAnalysis_Tables",
    "NumaAffinity",
    "Nvlink",
    "Nvlink_Tables",
    "Nvlink_Topology",
    "Occupancy",
    "PmSampling",
    "PmSampling_WarpStates",
    "SchedulerStats",
    "SourceCounters",
    "SpeedOfLight",
    "SpeedOfLight_HierarchicalDoubleRooflineChart",
    "SpeedOfLight_HierarchicalHalfRooflineChart",
    "SpeedOfLight_HierarchicalSingleRooflineChart",
    "SpeedOfLight_HierarchicalTensorRooflineChart",
    "SpeedOfLight_RooflineChart",
    "WarpStateStats",
    "WorkloadDistribution",
)
#: ncu takes sections by a pattern, too.
_PATTERN = "regex:"
#: Where an installation has its own sections: next to ncu, or some folders above it.
_OWN_FOLDER = "sections"
_FOLDERS_ABOVE = 4


class NcuOptions(NsightOptions, frozen=True, kw_only=True):
    """What the user requested of ncu, as `perfkit ncu --help` has it."""

    kernel: str | None = None
    launch_skip: int | None = None
    launch_count: int | None = None
    all_kernels: bool = False
    nvtx_include: tuple[str, ...] = ()
    set: str | None = None
    section: tuple[str, ...] = ()
    section_folder: tuple[str, ...] = ()
    replay_mode: str | None = None
    clock_control: str | None = None
    from_start: bool = False
    extra: str = ""


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
    for folder in options.section_folder:
        if not Path(folder).is_dir():
            raise UsageError(f"--section-folder takes a folder with .section and .py files, and {folder} is none")
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
    _check_names("--set", [options.set] if options.set is not None else [], SETS, options, tool)
    _check_names("--section", options.section, SECTIONS, options, tool)
    return [
        *supported_words(list(_tool_options(options, inside, tool)), tool),
        *split_words("--ncu-args", options.extra),
    ]


def _check_names(
    option: str, names: Sequence[str], known: Sequence[str], options: NcuOptions, tool: InstalledTool | None
) -> None:
    """Refuse sets and sections that neither perfkit nor the installed tool knows; without the tool, folders may."""
    unknown = [name for name in names if name not in known and not name.startswith(_PATTERN)]
    if not unknown or (tool is None and options.section_folder):
        return
    folders = _folder_words(options, tool)
    listed = listed_names(tool, *folders, f"--list-{option.removeprefix('--')}s") if tool is not None else frozenset()
    for name in unknown:
        if name not in listed:
            near = difflib.get_close_matches(name, {*known, *listed}, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"they are {', '.join(known)}"
            raise UsageError(f"{option} takes a {option.removeprefix('--')} of ncu, got {name!r}: {hint}")


def _folder_words(options: NcuOptions, tool: InstalledTool | None) -> list[str]:
    """The folders of sections: with those of the user ncu no longer searches its own, so that is one of them."""
    own = _own_folder(tool) if options.section_folder else None
    return [word for folder in (own, *options.section_folder) if folder for word in ("--section-folder", str(folder))]


def _own_folder(tool: InstalledTool | None) -> Path | None:
    above = Path(tool.path).resolve().parents[:_FOLDERS_ABOVE] if tool is not None else ()
    return next((folder / _OWN_FOLDER for folder in above if (folder / _OWN_FOLDER).is_dir()), None)


def _tool_options(options: NcuOptions, inside: bool, tool: InstalledTool | None) -> Iterator[ToolOption]:
    def option(name: str, *values: object, requested: object = True) -> ToolOption:
        return ToolOption((f"--{name}", *map(str, values)), bool(requested))

    # The program is a child of perfkit run's Python, or of a launcher.
    yield option("target-processes", "all", requested=False)
    if options.section_folder:
        if _own_folder(tool) is None:
            print_message(
                "ncu's own folder of sections was not found, and with --section-folder ncu searches only what is named:"
                " add the folder sections of its installation"
            )
        yield ToolOption(tuple(_folder_words(options, tool)), requested=True)
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
