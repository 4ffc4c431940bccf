"""Repairs text that is not valid JSON, piece by piece, and counts the events that could not be repaired."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from perfkit.trace.kineto._event_decoding import NOT_JSON, TYPED_TEXT, Decoder, Event, strict

#: Where one event ends and the next begins, unless it is inside a string or a nested object.
BOUNDARY = re.compile(rb"\}\s*,\s*\{")

#: A backslash with the escape that it begins, or alone; half of a surrogate pair is not a character.
ESCAPE = re.compile(
    r"\\(?:(?P<half>u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
    r"|(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<other_half>u[dD][c-fC-F][0-9a-fA-F]{2})"
    r'|(?P<good>["\\/bfnrt]|u[0-9a-fA-F]{4})|)'
)
#: A word that JSON lacks, also as a part of a string.
WORD = re.compile(r"NaN|nan|[Ii]nf|N/A")
#: A string, or a bare word where only a value can stand.
WORD_OR_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|nan|[Ii]nf(?:inity)?|N/A)\b', re.DOTALL)


def lenient(text: bytes, decoder: Decoder) -> tuple[list[Event], int]:
    """The events of damaged text, and how many could not be repaired."""
    parse_float = str if decoder is TYPED_TEXT else float
    # Valid pieces decode as they are, so that damage costs only the event that it is in.
    events: list[Event] = []
    lost = 0
    for piece in split_at_boundaries(text, 64 << 10):
        decoded = strict(piece, decoder)
        if decoded is not None:
            events += decoded
            continue
        try:
            events += repair(piece, parse_float)
            continue
        except NOT_JSON:
            pass
        for single in split_at_boundaries(piece, 1):
            try:
                events += repair(single, parse_float)
            except NOT_JSON:
                lost += 1
    return events, lost


def split_at_boundaries(text: bytes, size: int = 1) -> Iterator[bytes]:
    """The text cut wherever one event might end and the next begin, into pieces of at least this size."""
    begin = 0
    for match in BOUNDARY.finditer(text):
        if match.start() + 1 - begin >= size:
            yield text[begin : match.start() + 1]
            begin = match.end() - 1
    yield text[begin:]


def repair(text: bytes, parse_float: type = float) -> list[dict[str, Any]]:
    """The events of text with invalid UTF-8, stray backslashes, control characters, NaN or the like.

    Raises:
        one of `NOT_JSON`: the text is damaged in another way.
    """
    repaired = text.decode("utf-8", "replace")
    # Most damaged text has neither, and to look at each of its strings takes as long as to decode it ten times.
    if "\\" in repaired:
        repaired = ESCAPE.sub(_repair_escape, repaired)
    if WORD.search(repaired):
        repaired = WORD_OR_STRING.sub(lambda match: match[0] if match[0].startswith('"') else "null", repaired)
    decoded = json.loads(f"[{repaired}]", strict=False, parse_float=parse_float)
    return [event for event in decoded if isinstance(event, dict)]


def _repair_escape(match: re.Match[str]) -> str:
    if match["half"] or match["other_half"]:
        return "\\ufffd"
    return match[0] if match["good"] or match["pair"] else "\\\\"
