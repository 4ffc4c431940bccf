"""The options of ``nsys profile``: what is recorded, when, and what happens to the program when the recording ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import typer

from perfkit._nvtx_names import DOMAIN, WINDOW
from perfkit.errors import UsageError
from perfkit.nsight_runner._common_options import NsightOptions, ToolOption, split_words, supported_words
from perfkit.nsight_runner.installed_tools import InstalledTool

CAPTURE_RANGES = ("cudaProfilerApi", "nvtx", "none")
_RANGE_END = re.compile(r"none|stop|stop-shutdown|repeat(?::[1-9]\d*)?|repeat-shutdown:[1-9]\d*")
_KILL = re.compile(r"none|sigterm|sigkill|[1-9]\d?")

#: What is traced: system calls always, because nothing else shows a thread that waits for a file or a lock.
_TRACE_CUDA, _TRACE_HOST = "cuda,nvtx,osrt,cudnn,cublas", "nvtx,osrt"


class NsysOptions(NsightOptions, frozen=True, kw_only=True):
    """The options of `perfkit nsys`; times are seconds."""

    capture_range: Annotated[
        str | None,
        typer.Option(
            help="Start the recording with: cudaProfilerApi (perfkit calls it for each window; the default with CUDA),"
            " nvtx (the range perfkit.window; works without CUDA), none (record the whole program and cut the report"
            " to the window; the default without CUDA).",
        ),
    ] = None
    nvtx_capture: Annotated[
        str | None,
        typer.Option(help="Record another range with --capture-range nvtx, given as range@domain or range@*."),
    ] = None
    capture_range_end: Annotated[
        str | None,
        typer.Option(
            help="At the end of a window: stop (default), repeat[:N] (one report per window; default with several"
            " windows), none, or stop-shutdown and repeat-shutdown:N, which need --kill.",
        ),
    ] = None
    kill: Annotated[
        str | None,
        typer.Option(
            help="Send this signal to the program when the recording ends: none, sigterm, sigkill, or a number."
            " Default: none, so that training continues.",
        ),
    ] = None
    delay: Annotated[int | None, typer.Option(help="Start the recording after N seconds.", metavar="N", min=0)] = None
    duration: Annotated[int | None, typer.Option(help="Record for N seconds.", metavar="N", min=1)] = None
    trace: Annotated[
        str | None,
        typer.Option(
            "-t", "--trace", help=f"Trace these APIs. Default: {_TRACE_CUDA} with CUDA, {_TRACE_HOST} without."
        ),
    ] = None
    nvtx_domain_include: Annotated[list[str], typer.Option(help="Record only this NVTX domain. Repeatable.")] = []
    nvtx_domain_exclude: Annotated[list[str], typer.Option(help="Skip this NVTX domain. Repeatable.")] = []
    sample: Annotated[str | None, typer.Option("-s", "--sample", help="Sample the CPU. Default: none.")] = None
    cpuctxsw: Annotated[str | None, typer.Option(help="Trace CPU context switches. Default: none.")] = None
    extra: Annotated[
        str, typer.Option("--nsys-args", help="Pass more options to nsys profile, as one quoted string.")
    ] = ""


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
    if "nvtx" not in (options.trace or _TRACE_HOST).split(","):
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
    yield option("trace", options.trace or (_TRACE_CUDA if device else _TRACE_HOST), options.trace)
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
