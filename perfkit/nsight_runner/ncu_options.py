"""The command line of ``ncu``: which kernels are looked at, how many, and what is measured of each."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from perfkit.errors import UsageError
from perfkit.nsight_runner.installed_tools import Part, Tool, fit, split_options
from perfkit.nsight_runner.target_program import Program

REPLAY_MODES = ("kernel", "application", "range", "app-range")

#: Kernels that are looked at unless asked otherwise. Each is run some ten times for the sections below, with its memory
#: saved and put back, while a training step launches hundreds to thousands: ncu's own default, all of them, turns
#: minutes into days. So many are the forward pass of some layers.
LAUNCHES = 50

#: The set basic (throughput, occupancy, launch) and what perfkit's rules read beyond it: memory, stalls, roofline. The
#: set full has all of these and many more, for which each kernel is run more often.
_SET = "basic"
_SECTIONS = ("MemoryWorkloadAnalysis", "WarpStateStats", "SpeedOfLight_RooflineChart")


class NcuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; None where it was left to perfkit."""

    kernel: str | None = None
    launch_skip: int | None = None
    launch_count: int | None = None
    all_kernels: bool = False
    nvtx_include: tuple[str, ...] = ()
    set: str | None = None
    sections: tuple[str, ...] = ()
    replay_mode: str | None = None
    clock_control: str | None = None
    from_start: bool = False
    force_overwrite: bool = False
    extra: str = ""


def check(options: NcuOptions) -> None:
    """Refuse what cannot be.

    Raises:
        UsageError: says what must hold and what to do.
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


def ncu_words(options: NcuOptions, tool: Tool | None, *, inside: bool) -> list[str]:
    """The options of ncu, without its output; ``tool`` says which it has, None for all.

    ``inside`` is whether perfkit records in the program.

    Raises:
        UsageError: see `check`, and where the tool is too old for what was asked for.
    """
    check(options)

    def part(*words: str, asked: object = None) -> Part:
        return Part((f"--{words[0]}", *words[1:]), asked is not None)

    parts = [
        # The program is a child of perfkit run's Python, or of a launcher.
        part("target-processes", "all"),
        part("set", options.set or _SET, asked=options.set),
    ]
    sections = options.sections or (_SECTIONS if options.set is None else ())
    parts += [part("section", section, asked=options.sections or None) for section in sections]
    if options.kernel is not None:
        parts.append(part("kernel-name", f"regex:{options.kernel}", asked=True))
    if options.launch_skip is not None:
        parts.append(part("launch-skip", str(options.launch_skip), asked=True))
    if not options.all_kernels:
        count = LAUNCHES if options.launch_count is None else options.launch_count
        parts.append(part("launch-count", str(count), asked=True))
    if options.nvtx_include:
        parts.append(part("nvtx", asked=True))
        parts += [part("nvtx-include", one, asked=True) for one in options.nvtx_include]
    if options.replay_mode is not None:
        parts.append(part("replay-mode", options.replay_mode, asked=True))
    if inside and not options.from_start:
        # perfkit opens it with the window; in a program without perfkit nothing would, and ncu record nothing.
        parts.append(part("profile-from-start", "off", asked=True))
    if options.clock_control is not None:
        parts.append(part("clock-control", options.clock_control, asked=True))
    if options.force_overwrite:
        parts.append(part("force-overwrite", asked=True))
    return [*fit(parts, tool), *split_options("--ncu-args", options.extra)]


def ncu_command(words: Sequence[str], program: Program, tool: Tool | None, output: str) -> list[str]:
    """The whole command, with ``words`` from `ncu_words`."""
    path = tool.path if tool is not None else "ncu"
    return [*program.launcher, path, *words, "--export", output, *program.words]
