"""Text to events: strictly with msgspec, and where that fails repaired piece by piece, counting what is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

#: The name of the instants of allocations and frees; they have no category of their own.
MEMORY = "[memory]"

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)

Decoder = msgspec.json.Decoder[list[Any]]
Event = Any  # a Struct of the decoder, or a dict where the text was repaired
Buffer = bytes | bytearray | memoryview


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments that become columns; any type, since every one was seen as a string somewhere."""

    correlation: Any = -1
    stream: Any = -1
    device: Any = None
    bytes: Any = -1
    sequence: Any = msgspec.field(name="Sequence number", default=-1)


NO_ARGS = Args()


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """An event with a start and a duration."""

    name: Any = ""
    cat: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    dur: Any = None
    args: Args | None = NO_ARGS


class MemoryArgs(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an allocation or a free that become columns."""

    bytes: Any = msgspec.field(name="Bytes", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=0)
    device: Any = msgspec.field(name="Device Id", default=-1)


NO_MEMORY_ARGS = MemoryArgs()


class Instant(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """An event without a duration; only those of memory are kept."""

    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    args: MemoryArgs | None = NO_MEMORY_ARGS


class Naming(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """Names a process or a thread."""

    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    args: Any = None


#: The other letters of the Chrome format, flows above all: skipped by the decoder, at no cost in Python.
SKIPPED = tuple(
    msgspec.defstruct(f"Skipped_{ord(letter)}", [], tag_field="ph", tag=letter, gc=False)
    for letter in "sfCBEbenNODtPRcvVSTpI"
)
SKIPPED_NAMING = msgspec.defstruct("SkippedNaming", [], tag_field="ph", tag="M", gc=False)


def decoder_of(*letters: type, float_hook: Any = None) -> Decoder:
    """A decoder of arrays of events that builds these and skips what has another letter."""
    event: Any = letters[0]
    for letter in (*letters[1:], *SKIPPED):
        event = event | letter
    return msgspec.json.Decoder(list[event], float_hook=float_hook)


TYPED = decoder_of(Complete, Instant, Naming)
#: Floats as their text, for times with more digits than a float holds.
TYPED_TEXT = decoder_of(Complete, Instant, Naming, float_hook=str)

#: Where one event ends and the next begins, if it is not inside a string or a deeper object.
BOUNDARY = re.compile(rb"\}\s*,\s*\{")

#: A backslash with what makes it an escape, or alone; half of a surrogate pair is no character.
ESCAPE = re.compile(
    r"\\(?:(?P<half>u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
    r"|(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<other_half>u[dD][c-fC-F][0-9a-fA-F]{2})"
    r'|(?P<good>["\\/bfnrt]|u[0-9a-fA-F]{4})|)'
)
#: A string, or a bare word where only a value can stand.
WORD_OR_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|nan|[Ii]nf(?:inity)?|N/A)\b', re.DOTALL)


def strict(text: Buffer, decoder: Decoder) -> list[Event] | None:
    """The events of text that is JSON, array elements without the brackets; None if it is not."""
    return strict_array(b"".join((b"[", text, b"]")), decoder)


def strict_array(array: Buffer, decoder: Decoder) -> list[Event] | None:
    """The same with the brackets."""
    try:
        return decoder.decode(array)
    except NOT_JSON:
        return None


def lenient(text: bytes, decoder: Decoder) -> tuple[list[Event], int]:
    """The events of damaged text, and how many were beyond repair."""
    parse_float = str if decoder is TYPED_TEXT else float
    # Confine the damage: good pieces decode as they are, and a bad one costs only itself.
    events: list[Event] = []
    lost = 0
    for piece in _pieces(text, 64 << 10):
        good = strict(piece, decoder)
        if good is not None:
            events += good
            continue
        try:
            events += repair(piece, parse_float)
            continue
        except NOT_JSON:
            pass
        for single in _pieces(piece, 1):
            try:
                events += repair(single, parse_float)
            except NOT_JSON:
                lost += 1
    return events, lost


def _pieces(text: bytes, size: int) -> Iterator[bytes]:
    """The text cut at possible event boundaries into pieces of at least this size."""
    begin = 0
    for match in BOUNDARY.finditer(text):
        if match.start() + 1 - begin >= size:
            yield text[begin : match.start() + 1]
            begin = match.end() - 1
    yield text[begin:]


def repair(text: bytes, parse_float: type = float) -> list[dict[str, Any]]:
    """Events of damaged text: bad UTF-8, lone backslashes, control characters, NaN and its like."""
    repaired = ESCAPE.sub(_escape, text.decode("utf-8", "replace"))
    repaired = WORD_OR_STRING.sub(lambda m: m[0] if m[0].startswith('"') else "null", repaired)
    decoded = json.loads(f"[{repaired}]", strict=False, parse_float=parse_float)
    return [event for event in decoded if isinstance(event, dict)]


def _escape(match: re.Match[str]) -> str:
    if match["half"] or match["other_half"]:
        return "\\ufffd"
    return match[0] if match["good"] or match["pair"] else "\\\\"


def complete_of(event: dict[str, Any]) -> Complete:
    """A repaired event in the shape of the decoded ones."""
    args = event.get("args")
    if not isinstance(args, dict):
        args = {}
    return Complete(
        name=event.get("name", ""),
        cat=event.get("cat", ""),
        pid=event.get("pid", ""),
        tid=event.get("tid", ""),
        ts=event.get("ts"),
        dur=event.get("dur"),
        args=Args(
            correlation=args.get("correlation", -1),
            stream=args.get("stream", -1),
            device=args.get("device"),
            bytes=args.get("bytes", -1),
            sequence=args.get("Sequence number", -1),
        ),
    )


def instant_of(event: dict[str, Any]) -> Instant:
    """The same of an instant."""
    args = event.get("args")
    if not isinstance(args, dict):
        args = {}
    return Instant(
        name=event.get("name", ""),
        pid=event.get("pid", ""),
        tid=event.get("tid", ""),
        ts=event.get("ts"),
        args=MemoryArgs(args.get("Bytes"), args.get("Device Type", 0), args.get("Device Id", -1)),
    )
