"""JSON of ours with a schema version: read in this version only, because what it is made from is kept."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from perfkit.errors import RunError

_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class _SchemaVersion(msgspec.Struct):
    schema: int


def decode_versioned(text: str | bytes, answer: type[_Answer], schema: int, name: str, again: str) -> _Answer:
    """Decode ``text`` as ``answer`` if it has this schema.

    Args:
        text: JSON, from a file that anyone may have written.
        answer: The Struct to make of it.
        schema: The only version that is read.
        name: What the text should be, in an error: "the diagnosis".
        again: How to make one of this version, in an error.

    Raises:
        RunError: it is damaged, or of another version.
    """
    try:
        found = msgspec.json.decode(text, type=_SchemaVersion).schema
        if found == schema:
            return msgspec.json.decode(text, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{name} is damaged: {error}") from error
    raise RunError(f"{name} has schema {found}, this perfkit reads {schema}: {again}")
