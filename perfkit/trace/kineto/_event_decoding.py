"""The types that events are decoded to, and the msgspec decoders that build them."""

from __future__ import annotations

from typing import Any

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)

Decoder = msgspec.json.Decoder[list[Any]]
Event = Any  # a Struct of the decoder, or a dict where the text was repaired
Buffer = bytes | bytearray | memoryview


class ColumnArgs(msgspec.Struct, frozen=True, gc=False):
    """The arguments that become columns; of any type, because traces exist with a string in place of each."""

    correlation: Any = -1
    stream: Any = -1
    device: Any = None
    bytes: Any = -1
    sequence: Any = msgspec.field(name="Sequence number", default=-1)


NO_ARGS = ColumnArgs()


class CompleteEvent(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """An event with a start and a duration."""

    name: Any = ""
    cat: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    dur: Any = None
    args: ColumnArgs | None = NO_ARGS


class MemoryArgs(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an allocation or a free that become columns."""

    bytes: Any = msgspec.field(name="Bytes", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=0)
    device: Any = msgspec.field(name="Device Id", default=-1)


NO_MEMORY_ARGS = MemoryArgs()


class InstantEvent(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """An event without a duration; only allocations and frees become rows."""

    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    args: MemoryArgs | None = NO_MEMORY_ARGS


class NamingEvent(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """The name of a process or a thread."""

    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    args: Any = None


#: The other event types of the Chrome format, mostly flows: the decoder skips them, at no cost in Python.
SKIPPED = tuple(
    msgspec.defstruct(f"Skipped_{ord(letter)}", [], tag_field="ph", tag=letter, gc=False)
    for letter in "sfCBEbenNODtPRcvVSTpI"
)
SKIPPED_NAMING = msgspec.defstruct("SkippedNaming", [], tag_field="ph", tag="M", gc=False)


def decoder_of(*types: type, float_hook: Any = None) -> Decoder:
    """A decoder of arrays of events that builds these types and skips all others."""
    event: Any = types[0]
    for event_type in (*types[1:], *SKIPPED):
        event = event | event_type
    return msgspec.json.Decoder(list[event], float_hook=float_hook)


TYPED = decoder_of(CompleteEvent, InstantEvent, NamingEvent)
#: Keeps floats as text, for times with more digits than a float holds.
TYPED_TEXT = decoder_of(CompleteEvent, InstantEvent, NamingEvent, float_hook=str)


def strict(text: Buffer, decoder: Decoder) -> list[Event] | None:
    """The events of valid JSON, given as array elements without the brackets; None where the text is not valid."""
    return strict_array(b"".join((b"[", text, b"]")), decoder)


def strict_array(array: Buffer, decoder: Decoder) -> list[Event] | None:
    """The same with the brackets."""
    try:
        return decoder.decode(array)
    except NOT_JSON:
        return None


def typed(event: dict[str, Any]) -> CompleteEvent | InstantEvent | NamingEvent | None:
    """A repaired event as `TYPED` would have built it; None for an event type that is skipped."""
    if event.get("ph") not in ("X", "i", "M"):
        return None
    if event["ph"] != "M" and not isinstance(event.get("args"), dict):
        event = {**event, "args": None}
    return msgspec.convert(event, CompleteEvent | InstantEvent | NamingEvent)
