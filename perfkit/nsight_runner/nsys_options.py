"""The command line of ``nsys profile``: what is recorded, when, and what happens to the program when that ends."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from perfkit.errors import UsageError
from perfkit.nsight_runner.installed_tools import Part, Tool, fit, split_options
from perfkit.nsight_runner.target_program import Program
from perfkit.ranges.range_arguments import DOMAIN
from perfkit.record.windows.cuda_profiler import RANGE

CAPTURE_RANGES = ("cudaProfilerApi", "nvtx", "none")
_RANGE_END = re.compile(r"none|stop|stop-shutdown|repeat(?::[1-9]\d*)?|repeat-shutdown:[1-9]\d*")
_KILL = re.compile(r"none|sigterm|sigkill|[1-9]\d?")

#: What is traced: calls of the system always, because a thread that waits for a file or a lock shows nowhere else.
_TRACE_CUDA, _TRACE_HOST = "cuda,nvtx,osrt,cudnn,cublas", "nvtx,osrt"


class NsysOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; None where it was left to perfkit. Times are seconds."""

    trace: str | None = None
    capture_range: str | None = None
    nvtx_capture: str | None = None
    capture_range_end: str | None = None
    kill: str | None = None
    delay: int | None = None
    duration: int | None = None
    domains: tuple[str, ...] = ()
    no_domains: tuple[str, ...] = ()
    sample: str | None = None
    cpuctxsw: str | None = None
    force_overwrite: bool = False
    #: How many windows the schedule opens; 0 for as many as the run has time for.
    windows: int = 1
    #: More options of nsys', as they are.
    extra: str = ""


def capture_range_of(options: NsysOptions, *, cuda: bool) -> str:
    """The capture range: as asked; else the one that perfkit opens, where there is CUDA; else the whole program."""
    return options.capture_range or ("cudaProfilerApi" if cuda else "nvtx" if options.nvtx_capture else "none")


def check(options: NsysOptions, *, cuda: bool) -> None:
    """Refuse what cannot be, and what would end a training unasked.

    Raises:
        UsageError: says what must hold and what to do.
    """
    chosen = capture_range_of(options, cuda=cuda)
    if chosen not in CAPTURE_RANGES:
        raise UsageError(f"--capture-range takes {', '.join(CAPTURE_RANGES)}, got {chosen!r}")
    if options.kill is not None and not _KILL.fullmatch(options.kill):
        raise UsageError(f"--kill takes none, sigterm, sigkill or a signal's number, got {options.kill!r}")
    if (end := options.capture_range_end) is not None:
        if not _RANGE_END.fullmatch(end):
            raise UsageError(
                "--capture-range-end takes none, stop, repeat, repeat:N, stop-shutdown or repeat-shutdown:N, got"
                f" {end!r}"
            )
        if chosen == "none":
            raise UsageError(
                "--capture-range-end needs a capture range, and without CUDA the whole program is recorded: add"
                " --capture-range nvtx"
            )
        if "shutdown" in end and options.kill in (None, "none"):
            raise UsageError(
                f"--capture-range-end {end} ends the training with the capture range: use"
                f" {end.replace('-shutdown', '')}, or add --kill sigterm if it shall end"
            )
    if options.nvtx_capture is not None and chosen != "nvtx":
        raise UsageError(f"--nvtx-capture needs --capture-range nvtx, got {chosen}")
    if options.domains and options.no_domains:
        raise UsageError("--nvtx-domain-include and --nvtx-domain-exclude exclude each other: give one of them")
    if DOMAIN in options.no_domains:
        raise UsageError(f"the domain {DOMAIN} holds the window, by which a report is cut: do not exclude it")
    traced = (options.trace or _TRACE_HOST).split(",")
    if "nvtx" not in traced:
        raise UsageError(f"--trace must hold nvtx, for the window and all ranges come through it, got {options.trace}")


def nsys_words(options: NsysOptions, tool: Tool | None, *, inside: bool, cuda: bool) -> list[str]:
    """The options of ``nsys profile``, without its output; ``tool`` says which it has, None for all.

    ``inside`` is whether perfkit records in the program.

    Raises:
        UsageError: see `check`, and where the tool is too old for what was asked for.
    """
    check(options, cuda=cuda)
    chosen = capture_range_of(options, cuda=cuda)
    device = cuda or chosen == "cudaProfilerApi"

    def part(name: str, value: str, asked: object = None) -> Part:
        return Part((f"--{name}={value}",), asked is not None)

    parts = [
        part("trace", options.trace or (_TRACE_CUDA if device else _TRACE_HOST), options.trace),
        # Sampling needs rights that containers lack, and makes ten times the data; perfkit has lines from its own.
        part("sample", options.sample or "none", options.sample),
        part("cpuctxsw", options.cpuctxsw or "none", options.cpuctxsw),
        # nsys' own default ends the program with the recording.
        part("kill", options.kill or "none", options.kill),
    ]
    if device:
        # The default draws a CUDA graph as one block, without the kernels in it.
        parts.append(part("cuda-graph-trace", "node"))
    if chosen != "none":
        # nsys' default, stop-shutdown, ends the program too, and records one window of several.
        end = options.capture_range_end or ("stop" if options.windows == 1 else "repeat")
        parts += [part("capture-range", chosen, chosen), part("capture-range-end", end, end)]
    if chosen == "nvtx":
        parts.append(part("nvtx-capture", options.nvtx_capture or f"{RANGE}@{DOMAIN}", chosen))
        if options.nvtx_capture is not None:
            # Otherwise names that are not registered, as torch.cuda.nvtx's, never open it.
            parts.append(part("env-var", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0", chosen))
    if options.delay is not None:
        parts.append(part("delay", str(options.delay), True))
    if options.duration is not None:
        parts.append(part("duration", str(options.duration), True))
    if options.domains:
        # Without it the window, which cuts the report, would be missing.
        domains = dict.fromkeys((*options.domains, *((DOMAIN,) if inside else ())))
        parts.append(part("nvtx-domain-include", ",".join(domains), True))
    if options.no_domains:
        parts.append(part("nvtx-domain-exclude", ",".join(options.no_domains), True))
    if options.force_overwrite:
        parts.append(part("force-overwrite", "true", True))
    return [*fit(parts, tool), *split_options("--nsys-args", options.extra)]


def nsys_command(words: Sequence[str], program: Program, tool: Tool | None, output: str) -> list[str]:
    """The whole command, with ``words`` from `nsys_words`."""
    path = tool.path if tool is not None else "nsys"
    return [*program.launcher, path, "profile", *words, f"--output={output}", *program.words]
