"""The options of ``nsys profile``: what is recorded, when, and what happens to the program when the recording ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit._nvtx_names import DOMAIN, WINDOW
from perfkit.errors import UsageError
from perfkit.nsight_runner._common_options import NsightOptions, ToolOption, split_words, supported_words
from perfkit.nsight_runner.installed_tools import InstalledTool

CAPTURE_RANGES = ("cudaProfilerApi", "nvtx", "none")
_RANGE_END = re.compile(r"none|stop|stop-shutdown|repeat(?::[1-9]\d*)?|repeat-shutdown:[1-9]\d*")
_KILL = re.compile(r"none|sigterm|sigkill|[1-9]\d?")

#: What is traced: system calls always, because nothing else shows a thread that waits for a file or a lock.
TRACE_CUDA, TRACE_HOST = "cuda,nvtx,osrt,cudnn,cublas", "nvtx,osrt"


class NsysOptions(NsightOptions, frozen=True, kw_only=True):
    """What the user requested of nsys, as `perfkit nsys --help` has it; times are seconds."""

    capture_range: str | None = None
    nvtx_capture: str | None = None
    capture_range_end: str | None = None
    kill: str | None = None
    delay: int | None = None
    duration: int | None = None
    trace: str | None = None
    nvtx_domain_include: tuple[str, ...] = ()
    nvtx_domain_exclude: tuple[str, ...] = ()
    sample: str | None = None
    cpuctxsw: str | None = None
    extra: str = ""


def capture_range_of(options: NsysOptions, *, cuda: bool) -> str:
    """The requested capture range; by default the one that perfkit opens with CUDA, else the whole program."""
    return options.capture_range or ("cudaProfilerApi" if cuda else "nvtx" if options.nvtx_capture else "none")


def check_nsys_options(options: NsysOptions, *, cuda: bool) -> None:
    """Refuse invalid options, and those that would end a training unless that is requested.

    Raises:
        UsageError: the message names the invalid option and what to do.
    """
    capture_range = capture_range_of(options, cuda=cuda)
    if capture_range not in CAPTURE_RANGES:
        raise UsageError(f"--capture-range takes {', '.join(CAPTURE_RANGES)}, got {capture_range!r}")
    if options.kill is not None and not _KILL.fullmatch(options.kill):
        raise UsageError(f"--kill takes none, sigterm, sigkill or the number of a signal, got {options.kill!r}")
    if (end := options.capture_range_end) is not None:
        if not _RANGE_END.fullmatch(end):
            raise UsageError(
                "--capture-range-end takes none, stop, repeat, repeat:N, stop-shutdown or repeat-shutdown:N, got"
                f" {end!r}"
            )
        if capture_range == "none":
            raise UsageError(
                "--capture-range-end needs a capture range, and without CUDA the whole program is recorded: add"
                " --capture-range nvtx"
            )
        if "shutdown" in end and options.kill in (None, "none"):
            raise UsageError(
                f"--capture-range-end {end} ends the training with the capture range: use"
                f" {end.replace('-shutdown', '')}, or add --kill sigterm to end the training"
            )
    if options.nvtx_capture is not None and capture_range != "nvtx":
        raise UsageError(f"--nvtx-capture needs --capture-range nvtx, got {capture_range}")
    if options.nvtx_domain_include and options.nvtx_domain_exclude:
        raise UsageError("--nvtx-domain-include and --nvtx-domain-exclude exclude each other: give one of them")
    if DOMAIN in options.nvtx_domain_exclude:
        raise UsageError(f"the domain {DOMAIN} contains the window, to which reports are cut: do not exclude it")
    if "nvtx" not in (options.trace or TRACE_HOST).split(","):
        raise UsageError(f"--trace must include nvtx, which has the window and all ranges, got {options.trace}")


def nsys_words(
    options: NsysOptions, tool: InstalledTool | None, *, windows: int = 1, inside: bool, cuda: bool
) -> list[str]:
    """The options of ``nsys profile``, without its output.

    Args:
        options: What the user requested.
        tool: The installed nsys; None to assume that it has all options.
        windows: Number of windows that the schedule opens; 0 for no limit.
        inside: Whether perfkit records in the program.
        cuda: Whether there is a CUDA device.

    Raises:
        UsageError: as `check_nsys_options`, or the tool lacks a requested option.
    """
    check_nsys_options(options, cuda=cuda)
    return [
        *supported_words(list(_tool_options(options, windows, inside, cuda)), tool),
        *split_words("--nsys-args", options.extra),
    ]


def _tool_options(options: NsysOptions, windows: int, inside: bool, cuda: bool) -> Iterator[ToolOption]:
    def option(name: str, value: object, requested: object = True) -> ToolOption:
        return ToolOption((f"--{name}={value}",), requested is not None)

    capture_range = capture_range_of(options, cuda=cuda)
    device = cuda or capture_range == "cudaProfilerApi"
    yield option("trace", options.trace or (TRACE_CUDA if device else TRACE_HOST), options.trace)
    # Sampling needs rights that containers lack, and makes ten times the data; perfkit samples lines itself.
    yield option("sample", options.sample or "none", options.sample)
    yield option("cpuctxsw", options.cpuctxsw or "none", options.cpuctxsw)
    # By default nsys ends the program with the recording.
    yield option("kill", options.kill or "none", options.kill)
    if device:
        # By default a CUDA graph is one event, without its kernels.
        yield option("cuda-graph-trace", "node", None)
    if capture_range != "none":
        yield option("capture-range", capture_range)
        # By default, stop-shutdown, nsys ends the program too, and records one window of several.
        yield option("capture-range-end", options.capture_range_end or ("stop" if windows == 1 else "repeat"))
    if capture_range == "nvtx":
        yield option("nvtx-capture", options.nvtx_capture or f"{WINDOW}@{DOMAIN}")
        if options.nvtx_capture is not None:
            # Otherwise names that are not registered, such as those of torch.cuda.nvtx, never open it.
            yield option("env-var", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0")
    for name in ("delay", "duration"):
        if (seconds := getattr(options, name)) is not None:
            yield option(name, seconds)
    if options.nvtx_domain_include:
        # Reports are cut to the window, so its domain is needed.
        domains = dict.fromkeys((*options.nvtx_domain_include, *((DOMAIN,) if inside else ())))
        yield option("nvtx-domain-include", ",".join(domains))
    if options.nvtx_domain_exclude:
        yield option("nvtx-domain-exclude", ",".join(options.nvtx_domain_exclude))
    if options.force_overwrite:
        yield option("force-overwrite", "true")
