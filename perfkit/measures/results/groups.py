"""Rows of tables that are made of single events or of groups of them, on request."""

from __future__ import annotations

import msgspec

from perfkit._location import Location
from perfkit.measures.results.kernels import Bound, NameTime


class GroupTime(NameTime, frozen=True, kw_only=True):
    """Events of one name with one key: the shapes of their inputs, their module, their line or their step.

    ``key`` is None for events of which the trace does not show it. ``op`` is the op around the launches of device work
    that is grouped by shape. For ops ``self_ns`` is host time not spent in ops that they called, and ``device_ns`` the
    device work launched inside. ``flops`` and ``bytes`` are the minimum that one call computes and moves, in
    ``precision``; the rates are these over the time that the calls took (of the device, where there is one).
    ``efficiency`` (0 to 1) is the larger share of the peaks of the device, or the time that the machine's measured
    limits would take, over the time taken; ``bound`` is what limits it. None where the work does not follow from the
    arguments, or the peaks are not known.
    """

    key: str | int | None
    op: str | None = None
    self_ns: int | None = None
    device_ns: int | None = None
    flops: int | None = None
    bytes: int | None = None
    precision: str | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    efficiency: float | None = None
    bound: Bound | None = None


class DeviceLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, copy or memset.

    ``start_ns`` counts from the first one of the list. ``latency_ns`` reaches from the end of the API call to the start
    (0 where it began within the call). ``step`` is the one that launched it. What the trace does not have is None.
    """

    name: str
    start_ns: int
    duration_ns: int
    device: int
    stream: int | None
    step: int | None = None
    call: str | None = None
    latency_ns: int | None = None
    op: str | None = None
    at: Location | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    bytes: int | None = None
    bytes_per_s: float | None = None
    correlation: int | None = None


class MessageTime(NameTime, frozen=True, kw_only=True):
    """Collectives of one name, group, type and message size on one device.

    ``bytes_per_s`` is message size by mean time; the bus' bandwidth is that times nccl-tests' factor, the mean and the
    fastest one's. None where the size of the message or the group is not known.
    """

    device: int
    group_size: int | None
    dtype: str | None
    message_bytes: int | None
    bytes_per_s: float | None
    bus_bytes_per_s: float | None
    best_bus_bytes_per_s: float | None


class QueuePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a device's window, from its start, and the mean number of launches whose work had not begun."""

    device: int
    start_ns: int
    end_ns: int
    depth: float


class BandwidthPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a device's window, from its start, and what its copies of one direction moved in it.

    A copy that lies in several parts counts in each by its time there. ``bytes_per_s`` is over the whole part.
    """

    device: int
    direction: str
    start_ns: int
    end_ns: int
    bytes: int
    bytes_per_s: float
