"""Times and ids of events as exact integers, whatever form a file gives them."""

from __future__ import annotations

import math
from array import array
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from perfkit.trace.intervals import Bools, Ints

#: From here on (in us) a float does not hold three exact decimals, and the text must be read instead.
EXACT_US = 2.0**43

#: Times in us beyond this do not fit int64 ns with a base added.
MAX_US = 4_000_000_000_000_000


class NeedsText(Exception):
    """A time has decimals that a float cannot hold."""


def times_ns(values: list[Any]) -> tuple[Ints, Bools]:
    """Times in us as exact ns, and which of them are usable.

    Raises:
        NeedsText: a float is too large for its decimals.
    """
    # Arrays are stricter and faster than numpy: they make no number of text and cut off no fraction.
    for code in "qd" if values and type(values[0]) is int else "d":
        try:
            us: Any = np.array(array(code, values))
        except (TypeError, OverflowError):
            continue
        usable = (us > -MAX_US) & (us < MAX_US)  # false for NaN
        if not usable.all():
            us = np.where(usable, us, 0)
        if code == "q":
            return us * 1000, usable
        whole = np.floor(us)
        part = us - whole
        if np.any((part != 0) & (np.abs(us) >= EXACT_US)):
            raise NeedsText
        # Not round(us * 1000): that product loses the last bit long before the sum does.
        return whole.astype(np.int64) * 1000 + np.rint(part * 1000).astype(np.int64), usable
    return times_in_turn(values)


def times_in_turn(values: list[Any]) -> tuple[Ints, Bools]:
    """The same for values of any type, one by one."""
    single = [_time_ns(value) for value in values]
    usable = np.fromiter((ns is not None for ns in single), bool, len(single))
    return np.fromiter((ns or 0 for ns in single), np.int64, len(single)), usable


def _time_ns(value: Any) -> int | None:
    if isinstance(value, str):
        return _text_ns(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) < MAX_US:  # too large, infinite, or NaN
        return None
    if isinstance(value, float) and abs(value) >= EXACT_US and value != math.floor(value):
        raise NeedsText
    whole = math.floor(value)
    return whole * 1000 + round((value - whole) * 1000)


def _text_ns(text: str) -> int | None:
    whole, _, part = text.partition(".")
    if len(part) == 3 and len(whole) < 16 and whole.isdecimal() and part.isdecimal():
        return int(whole + part)  # as profilers write it
    if len(text) >= 64:
        return None
    try:
        us = Decimal(text)
    except InvalidOperation:
        return None
    return int((us * 1000).to_integral_value()) if us.is_finite() and abs(us) < MAX_US else None


def ids(values: list[Any], limit: int = 2**62) -> Ints:
    """Non-negative integers below ``limit``, also written as text (``"0x10"``); -1 for anything else."""
    try:
        numbers: Ints = np.array(array("q", values))
    except (TypeError, OverflowError):
        numbers = np.fromiter(map(_id, values), np.int64, len(values))
    return np.where((numbers >= 0) & (numbers < limit), numbers, -1)


def _id(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, TypeError, OverflowError):
        return -1
    return number if 0 <= number < 2**63 else -1


def signed(value: Any) -> int:
    """A signed integer; 0 for anything else."""
    return value if type(value) is int and abs(value) < 2**62 else 0
