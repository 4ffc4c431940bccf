"""Numbers of kernels and API calls by name, and the roofline of kernels."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from perfkit._location import Location

Bound = Literal["compute", "memory", "neither", "unknown"]


class RooflinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one op with the same shapes, against what the device can do.

    ``flops`` and ``bytes`` are of one call, ``device_ns`` of all kernels of all ``count`` calls. ``intensity`` is in
    FLOP per byte. The shares are 0 to 1 of the peak in ``precision`` and of the memory's bandwidth, None where that is
    not known. ``bound`` is the larger of the two, ``neither`` where both are small. ``confidence`` is ``low`` where a
    type was assumed, the peaks were derived, or a share above 1 shows that the numbers contradict each other (a kernel
    missing, data that stayed in the cache).
    """

    op: str
    shapes: str
    precision: str
    count: int
    device_ns: int
    flops: int
    bytes: int
    intensity: float
    flops_per_s: float
    bytes_per_s: float
    compute_share: float
    memory_share: float | None
    bound: Bound
    confidence: Literal["high", "low"]


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of one device under its roofline, over ``steps`` steps (1 for a trace without).

    ``time_ns`` is kernel time by what bounds it, summing to ``device_ns``; ``unknown`` are kernels of ops whose work
    does not follow from their arguments, ``unknown_ns`` their time by class without communication. ``peaks_source``
    names the document of the peaks, or what they were derived from (``peaks_derived``); ``ridges`` are the ridge points
    in FLOP per byte by precision. ``problem`` is why nothing could be placed, None where something was. ``points``
    are the longest ones.
    """

    device: int
    name: str | None
    steps: int
    device_ns: int
    time_ns: dict[str, int]
    unknown_ns: dict[str, int] = {}
    peaks_source: str | None = None
    peaks_derived: bool = False
    ridges: dict[str, float] = {}
    problem: str | None = None
    points: tuple[RooflinePoint, ...] = ()

    @property
    def about_peaks(self) -> str:
        """Where the peaks come from, as a sentence; empty without any."""
        if self.peaks_source is None:
            return ""
        if not self.peaks_derived:
            return f"Peaks from {self.peaks_source}."
        return f"The peaks of {self.name or 'the device'} are not in perfkit's table; derived from {self.peaks_source}."


class NameTime(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the events of one name, in the steps of the trace (all of it where it has none).

    ``deviation_ns`` is that of a sample (divided by n - 1), 0 for a single event. ``share`` (0 to 1) is of the time of
    all names together.
    """

    name: str
    count: int
    total_ns: int
    mean_ns: float
    deviation_ns: float
    min_ns: int
    max_ns: int
    median_ns: int | None = None
    share: float | None = None


class ApiCall(NameTime, frozen=True, kw_only=True):
    """One function of the device's runtime or driver API: ``cudaLaunchKernel``, ``cuMemcpyAsync``."""


class OsCall(NameTime, frozen=True, kw_only=True):
    """One call of the operating system: ``poll``, ``sem_wait``."""


KernelClass = Literal[
    "matmul",
    "attention",
    "convolution",
    "elementwise",
    "reduction",
    "layout conversion",
    "copy",
    "communication",
    "optimizer",
    "indexing",
    "other",
]


Precision = Literal["float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8"]


class KernelTime(NameTime, frozen=True, kw_only=True):
    """One kernel by name. Its class, its precision and whether it uses tensor cores follow from the name.

    ``tensor_cores`` is None where the name does not show it. ``grid``, ``block`` and ``registers`` (per thread) are
    those of the longest of a few launches; ``occupancy`` (0 to 1, resident warps divided by the maximum) and
    ``sm_efficiency`` (0 to 1, the multiprocessors that have a block, as torch-tb-profiler estimates it: blocks per
    multiprocessor, 1 at most) their means by time. None where the trace does not have them. ``shared_bytes`` is the
    shared memory of a block.

    ``call`` is the API call that launched most of it by time, ``op`` the innermost op around these launches, ``at`` the
    user's line (its function alone where no line is known); a kernel of the backward has those of the forward op that
    made its node. None where the trace does not show them.
    """

    kernel_class: KernelClass
    precision: Precision | None = None
    tensor_cores: bool | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    occupancy: float | None = None
    sm_efficiency: float | None = None
    shared_bytes: int | None = None
    call: str | None = None
    op: str | None = None
    at: Location | None = None


class KernelClassTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of the kernels of one class, and its share of all kernels' (0 to 1)."""

    name: str
    total_ns: int
    share: float


def class_times(classes_ns: dict[str, int]) -> tuple[KernelClassTime, ...]:
    """The classes with their shares, in the same order."""
    total = sum(classes_ns.values())
    return tuple(KernelClassTime(name=name, total_ns=ns, share=ns / max(1, total)) for name, ns in classes_ns.items())


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of the steps (without steps: of the trace), all devices together, longest total first.

    A kernel belongs to the steps if it was launched in one. Times add up, also of those that run at once.

    ``copies`` are copies by direction, and memsets. ``classes_ns`` and ``precisions_ns`` each sum to ``total_ns``.
    ``product_ns`` is the time of matmuls, attention and convolutions, of which ``tensor_core_ns`` ran on tensor cores
    and of ``tensor_core_unknown_ns`` the names do not show it. ``occupancy`` and ``sm_efficiency`` are means by time
    of the kernels where they are known.
    """

    AVAILABLE_FROM: ClassVar[str] = "a trace with device work: a window recorded on a machine with a GPU"

    total_ns: int
    rows: tuple[KernelTime, ...]
    copies: tuple[NameTime, ...]
    classes_ns: dict[str, int]
    precisions_ns: dict[str, int]
    product_ns: int
    tensor_core_ns: int
    tensor_core_unknown_ns: int
    occupancy: float | None = None
    sm_efficiency: float | None = None
