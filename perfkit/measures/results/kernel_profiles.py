"""Numbers of kernels that Nsight Compute profiled one by one."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

import msgspec

from perfkit.measures.results.kernels import Bound

Limiter = Literal["registers", "shared memory", "warps", "blocks", "barriers"]


class Stall(msgspec.Struct, frozen=True):
    """Why warps do not issue: ncu's name of the reason, and the part (0 to 1) of a warp's time that it takes.

    ``share`` is None where the report has too few reasons to know the whole.
    """

    reason: str
    share: float | None


class PipeUse(msgspec.Struct, frozen=True):
    """A pipe of the multiprocessor (``fma``, ``tensor``, ``lsu``), and its use as a part (0 to 1) of its peak."""

    pipe: str
    share: float


class ToolAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What one of ncu's own rules advises, in its words.

    ``saving_share`` (0 to 1) is ncu's estimate of what the advice saves: of the launch's time, or, where ``is_local``,
    of what the rule looks at only. None where ncu gives no estimate.
    """

    rule: str
    section: str
    text: str
    is_local: bool = False
    saving_share: float | None = None


class DramChain(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that follow each other in the report, are limited by the device's memory, and work element by element.

    ``kernels`` are their names in order, ``count`` how often they follow each other so. ``total_ns`` is the time of all
    of them and ``share`` (0 to 1) its part of all profiled time.
    """

    kernels: tuple[str, ...]
    count: int
    total_ns: int
    share: float


class RoofPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a kernel under the roofline of its device.

    ``intensity`` is in FLOP per byte of device memory. The peaks are those of ``precision`` at the clock of the
    recording; ``roof_share`` (0 to 1) is what was reached of what the roof allows at this intensity. None where the
    report does not have it.
    """

    intensity: float
    flops_per_s: float
    bytes_per_s: float
    precision: str
    peak_flops_per_s: float | None = None
    peak_bytes_per_s: float | None = None
    roof_share: float | None = None
    bound: Bound = "unknown"


class KernelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of one kernel with one grid and block; shares are 0 to 1, means weighed by time.

    ``compute``, ``memory``, ``dram``, ``l1`` and ``l2`` are the throughput in parts of the device's peak; ``memory`` is
    the busiest part of the whole memory path. ``occupancy`` is what was reached, ``theoretical_occupancy`` what the
    launch allows, ``limiters`` what keeps that below 1. ``registers`` are per thread. ``spills`` are a launch's
    requests to memory for registers that did not fit, ``spill_share`` their part of all requests of that kind.
    ``waves`` is how often the grid fills the device. ``stalls`` are the three largest reasons. ``share`` is the part of
    all profiled time, of all launches where the report has no times. ``id``, ``device``, ``stream``, ``limiters`` and
    ``roof`` are those of the longest launch. None where the report does not have it.
    """

    name: str
    launches: int
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    id: int | None = None
    device: int | None = None
    stream: int | None = None
    total_ns: int | None = None
    share: float | None = None
    compute: float | None = None
    memory: float | None = None
    dram: float | None = None
    l1: float | None = None
    l2: float | None = None
    occupancy: float | None = None
    theoretical_occupancy: float | None = None
    limiters: tuple[Limiter, ...] = ()
    registers: int | None = None
    spills: float | None = None
    spill_share: float | None = None
    waves: float | None = None
    stalls: tuple[Stall, ...] = ()
    roof: RoofPosition | None = None
    l1_hit: float | None = None
    l2_hit: float | None = None
    ipc: float | None = None
    sm_busy: float | None = None
    pipes: tuple[PipeUse, ...] = ()
    tensor_pipe: float | None = None
    eligible_warps: float | None = None
    no_eligible: float | None = None
    threads_per_warp: float | None = None
    sector_use: float | None = None
    sectors_per_request: float | None = None
    conflict_share: float | None = None
    replay_share: float | None = None
    advice: tuple[ToolAdvice, ...] = ()

    @property
    def mean_ns(self) -> float | None:
        """Time of one launch."""
        return None if self.total_ns is None else self.total_ns / self.launches

    @property
    def bound(self) -> Bound:
        """The busier of compute and memory; ``neither`` where both are far below their peak."""
        if self.compute is None or self.memory is None:
            return self.roof.bound if self.roof is not None else "unknown"
        if max(self.compute, self.memory) < LATENCY:
            return "neither"
        return "compute" if self.compute >= self.memory else "memory"


class KernelProfiles(msgspec.Struct, frozen=True, kw_only=True):
    """A report of Nsight Compute, longest kernels first; ``total_ns`` is None where it has no times, and then
    there are no ``chains``.

    ncu runs each launch alone, several times, with fixed clocks and empty caches: its times show how efficient a kernel
    is, not what a training step spends in it.
    """

    AVAILABLE_FROM: ClassVar[str] = "a report of Nsight Compute: perfkit ncu"

    launches: int
    rows: tuple[KernelProfile, ...]
    total_ns: int | None = None
    compute_capability: str | None = None
    chains: tuple[DramChain, ...] = ()


#: With compute and memory both below this part of their peak a kernel mostly waits. Nsight Compute reports latency
#: issues below 60%; half of that leaves out the many kernels that are merely not perfect.
LATENCY = 0.30
#: From this part of its peak on a kernel uses a unit well: only below it does Nsight Compute report latency issues.
BUSY = 0.60
#: Threads of a warp.
WARP = 32


def short_name(name: str) -> str:
    """A kernel's name without its type, namespaces and arguments, which may be a thousand characters long."""
    flat = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    begin, end, depth = 0, len(flat), 0
    for at, character in enumerate(flat):
        if character in "<(":
            if character == "(" and not depth and at > begin:
                end = at  # the arguments
                break
            depth += 1
        elif character in ">)":
            depth -= depth > 0 and flat[at - 1] != "-"
        elif character == " " and not depth:
            begin = at + 1  # the type
    return re.sub(r"\b\w+::", "", flat[begin:end]).strip() or name
