"""The arguments of a range: which names, colors, categories, domains and payloads are valid."""

from __future__ import annotations

import numbers
from typing import cast

from perfkit.errors import UsageError

#: Colors by name, as 0xAARRGGBB: those of NVTX, and the other basic ones of HTML.
COLORS = {
    "black": 0xFF000000,
    "blue": 0xFF0000FF,
    "brown": 0xFFA52A2A,
    "cyan": 0xFF00FFFF,
    "darkgreen": 0xFF006400,
    "gray": 0xFF808080,
    "green": 0xFF008000,
    "grey": 0xFF808080,
    "magenta": 0xFFFF00FF,
    "navy": 0xFF000080,
    "orange": 0xFFFFA500,
    "pink": 0xFFFFC0CB,
    "purple": 0xFF800080,
    "rapids": 0xFF7400FF,
    "red": 0xFFFF0000,
    "teal": 0xFF008080,
    "white": 0xFFFFFFFF,
    "yellow": 0xFFFFFF00,
}

Color = str | int
Payload = int | float


def check_text(what: str, text: object) -> str:
    """``text`` as a plain str.

    Raises:
        UsageError: not a str, empty, with a NUL character, or not representable in UTF-8.
    """
    if not isinstance(text, str):
        raise UsageError(f"the {what} of a range must be a str, got {text!r} ({type(text).__name__})")
    if not text:
        raise UsageError(f"the {what} of a range must not be empty")
    if "\0" in text:
        raise UsageError(f"the {what} of a range must not contain a NUL character, got {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the {what} of a range must be valid Unicode, got {text!r}") from None
    return str.__str__(text)


def check_color(color: object) -> int | None:
    """A color as 0xAARRGGBB.

    Raises:
        UsageError: neither a known name, nor "#rrggbb", nor an int of 32 bits.
    """
    if color is None:
        return None
    if isinstance(color, str):
        if color.lower() in COLORS:
            return COLORS[color.lower()]
        digits = color[1:]
        if color.startswith("#") and len(digits) == 6 and set(digits.lower()) <= set("0123456789abcdef"):
            return 0xFF000000 | int(digits, 16)
    elif isinstance(color, int) and not isinstance(color, bool) and 0 <= color <= 0xFFFFFFFF:
        return color
    raise UsageError(f'the color of a range must be "#rrggbb", 0xAARRGGBB or one of {", ".join(COLORS)}; got {color!r}')


def check_payload(payload: object) -> Payload | None:
    """A payload as int (64 bits, signed) or float; None where it is neither.

    A tensor is neither: reading it would make the host wait for the device.
    """
    kind = type(payload)
    if kind is float:
        return cast(float, payload)
    if kind is int or isinstance(payload, numbers.Integral):
        number = int(cast(int, payload))
        return number if -(2**63) <= number < 2**63 else None
    # numpy's numbers are registered with `numbers`; tensors and arrays are not.
    return float(payload) if isinstance(payload, numbers.Real) else None
