"""Metadata before and after the events: devices, rank, the base of the clock; other keys may hold secrets."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.run.records.rank import MAX_RANKS
from perfkit.trace.columns import DeviceProperties, Metadata
from perfkit.trace.kineto._event_decoding import NOT_JSON
from perfkit.trace.kineto._json_repair import repair

#: With a time of the file added this still fits int64.
MAX_BASE_NS = 2**62


class KinetoMetadata(msgspec.Struct):
    """The keys that are read; others were seen to hold a whole environment with its access tokens."""

    deviceProperties: Any = None
    distributedInfo: Any = None
    host_name: Any = None
    baseTimeNanoseconds: Any = None
    with_stack: Any = None
    record_shapes: Any = None

    @property
    def base_ns(self) -> int | None:
        """What to add to the times of the file."""
        base = self.baseTimeNanoseconds
        return base if type(base) is int and 0 <= base < MAX_BASE_NS else None


def read_metadata(head: bytes, tail: bytes, lost: list[str]) -> KinetoMetadata:
    """The metadata before and after the events; the latter wins. Unreadable metadata is reported in ``lost``."""
    before = _read(head.rstrip().removesuffix(b",") + b"}", lost, "before") if head else KinetoMetadata()
    after = _read(b"{" + tail.strip().removeprefix(b","), lost, "after") if tail.strip() else KinetoMetadata()
    later = {key: value for key in KinetoMetadata.__struct_fields__ if (value := getattr(after, key)) is not None}
    return msgspec.structs.replace(before, **later)


def _read(text: bytes, lost: list[str], position: str) -> KinetoMetadata:
    try:
        return msgspec.json.decode(text, type=KinetoMetadata)
    except NOT_JSON:
        pass
    try:
        (repaired,) = repair(text)
        return KinetoMetadata(**{key: repaired.get(key) for key in KinetoMetadata.__struct_fields__})
    except NOT_JSON:
        lost.append(f"the metadata {position} the events could not be read")
        return KinetoMetadata()


def metadata_of(found: KinetoMetadata, base_ns: int | None) -> Metadata:
    """The metadata as users see it; ``base_ns`` is what was really added to the times."""
    distributed = found.distributedInfo if isinstance(found.distributedInfo, dict) else {}
    devices = []
    for one in found.deviceProperties if isinstance(found.deviceProperties, list) else []:
        if not isinstance(one, dict) or type(one.get("id")) is not int:
            continue
        major, minor = one.get("computeMajor"), one.get("computeMinor")
        devices.append(
            DeviceProperties(
                id=one["id"],
                name=str(one.get("name", "")),
                multiprocessors=_whole(one.get("numSms")),
                memory_bytes=_whole(one.get("totalGlobalMem")),
                capability=(major, minor) if type(major) is int and type(minor) is int else None,
            )
        )
    backend = distributed.get("backend")
    return Metadata(
        format="kineto",
        devices=tuple(devices),
        rank=_rank(distributed.get("rank")),
        world_size=_rank(distributed.get("world_size")),
        backend=backend if isinstance(backend, str) else None,
        host=found.host_name if isinstance(found.host_name, str) else None,
        base_ns=base_ns,
        with_stack=bool(found.with_stack) if found.with_stack is not None else None,
        record_shapes=bool(found.record_shapes) if found.record_shapes is not None else None,
    )


def _rank(value: Any) -> int | None:
    """The number of a rank, or of all of them; None for one that no launch has."""
    return value if type(value) is int and 0 <= value <= MAX_RANKS else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
