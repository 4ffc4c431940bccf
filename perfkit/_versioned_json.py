"""JSON: from a file that anyone may have written, of ours that is read in one version only, and as text to show."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from perfkit._text import cleaned, escaped_json
from perfkit.errors import RunError

_Answer = TypeVar("_Answer")

#: The largest file seen has 1.2 MB (figures.json). Measured: 32 MiB of empty objects made 0.98 GB of Python's.
MAX_JSON_BYTES = 16 * 2**20
#: Whole numbers above it are refused: numpy, and sums of some of them, must hold them. As ns it is the year 2116.
LARGEST = 2**62
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)


def decode_json(text: str | bytes, kind: type[_Answer]) -> _Answer:
    """Decode ``text`` as ``kind``, whatever it holds.

    Raises:
        msgspec.DecodeError: it is not JSON or not of this kind, is nested too deeply, or has a number above 2**62.
    """
    try:
        answer = msgspec.json.decode(text, type=kind)
        # Most files have no number of so many digits, and searching for one costs a third of decoding.
        data = text.encode() if isinstance(text, str) else text
        if b"0" * len(str(LARGEST)) in data.translate(_DIGITS_TO_ZERO):
            _check_numbers(msgspec.json.decode(data))
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except UnicodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error}") from None
    return answer


def json_text(answer: msgspec.Struct) -> str:
    """``answer`` as indented JSON, which a terminal can show whatever texts are in it."""
    try:
        text = msgspec.json.encode(answer)
    except UnicodeEncodeError:  # the path of a file whose name is not text
        text = msgspec.json.encode(cleaned(msgspec.to_builtins(answer)))
    return escaped_json(msgspec.json.format(text, indent=1).decode())


def _check_numbers(tree: Any) -> None:
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, int) and abs(one) > LARGEST:
            raise msgspec.ValidationError("Whole number out of range")


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
        found = decode_json(text, _SchemaVersion).schema
        if found == schema:
            return decode_json(text, answer)
    except msgspec.DecodeError as error:
        raise RunError(f"{name} is damaged: {error}") from error
    raise RunError(f"{name} has schema {found}, this perfkit reads {schema}: {again}")
