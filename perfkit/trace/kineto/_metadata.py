"""What stands around the events: devices, rank, the zero of the clock; nothing else, it may be secret."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.trace.columns import DeviceProperties, Metadata
from perfkit.trace.kineto._event_decoding import NOT_JSON, repair

#: With a time of the file added this still fits int64.
MOST_BASE_NS = 2**62


class Facts(msgspec.Struct):
    """The keys that are read; others were seen to hold a whole environment with its access tokens."""

    deviceProperties: Any = None
    distributedInfo: Any = None
    baseTimeNanoseconds: Any = None
    with_stack: Any = None
    record_shapes: Any = None

    @property
    def base_ns(self) -> int | None:
        """What to add to the times of the file."""
        base = self.baseTimeNanoseconds
        return base if type(base) is int and 0 <= base < MOST_BASE_NS else None


def read_facts(head: bytes, tail: bytes, lost: list[str]) -> Facts:
    """The facts before and after the events; the later win. What cannot be read is said in ``lost``."""
    before = _read(head.rstrip().removesuffix(b",") + b"}", lost, "before") if head else Facts()
    after = _read(b"{" + tail.strip().removeprefix(b","), lost, "after") if tail.strip() else Facts()
    later = {key: value for key in Facts.__struct_fields__ if (value := getattr(after, key)) is not None}
    return msgspec.structs.replace(before, **later)


def _read(text: bytes, lost: list[str], where: str) -> Facts:
    try:
        return msgspec.json.decode(text, type=Facts)
    except NOT_JSON:
        pass
    try:
        (repaired,) = repair(text)
        return Facts(**{key: repaired.get(key) for key in Facts.__struct_fields__})
    except NOT_JSON:
        lost.append(f"the metadata {where} the events could not be read")
        return Facts()


def describe(facts: Facts, base_ns: int | None) -> Metadata:
    """The facts as users see them; ``base_ns`` is what was really added to the times."""
    distributed = facts.distributedInfo if isinstance(facts.distributedInfo, dict) else {}
    devices = []
    for one in facts.deviceProperties if isinstance(facts.deviceProperties, list) else []:
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
        rank=_whole(distributed.get("rank")),
        world_size=_whole(distributed.get("world_size")),
        backend=backend if isinstance(backend, str) else None,
        base_ns=base_ns,
        with_stack=bool(facts.with_stack) if facts.with_stack is not None else None,
        record_shapes=bool(facts.record_shapes) if facts.record_shapes is not None else None,
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
