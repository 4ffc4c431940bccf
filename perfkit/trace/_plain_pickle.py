"""Reads pickles of plain data without unpickling them.

A pickle is a program that may call anything. This reads the part of its language that builds dicts, lists, tuples, text
and numbers, in bounded memory, and refuses everything else, classes and functions first of all.
"""

from __future__ import annotations

import struct
from typing import Any

#: Dicts, lists and tuples: the expensive objects, each built by one byte of a pickle. Fifty for each of the 100,000
#: entries that perfkit records.
MAX_CONTAINERS = 5_000_000
#: Values that wait for their container (pickle writes 1000 at a time), and nested open containers (real: 6).
MAX_WAITING = 10_000
MAX_DEPTH = 64


class PickleRefused(Exception):
    """The pickle is not read; the message says why."""


#: Opcodes that import, call or look up: what makes a pickle a program.
CALLING = {
    **dict.fromkeys((b"c", b"\x93", b"i"), "asks for a class or a function"),
    **dict.fromkeys((b"R", b"b", b"o", b"\x81", b"\x92"), "calls something"),
    **dict.fromkeys((b"P", b"Q", b"\x82", b"\x83", b"\x84", b"\x97"), "refers to things outside itself"),
}

CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}
#: Numbers by opcode, as struct formats.
NUMBERS = {ord("J"): struct.Struct("<i"), ord("K"): struct.Struct("<B"), ord("M"): struct.Struct("<H")}
NUMBERS[ord("G")] = struct.Struct(">d")
#: By opcode the width of a length, or of an index into the memo.
TEXTS = {ord("X"): 4, 0x8C: 1, 0x8D: 8}
PUTS = {ord("q"): 1, ord("r"): 4}
GETS = {ord("h"): 1, ord("j"): 4}
#: By opcode the length of a tuple of the last values; other containers are empty, or take all values since a mark.
TUPLES = {ord(")"): 0, 0x85: 1, 0x86: 2, 0x87: 3}
MARKED_TUPLE, EMPTY_DICT, EMPTY_LIST = ord("t"), ord("}"), ord("]")
CONTAINERS = {*TUPLES, MARKED_TUPLE, EMPTY_DICT, EMPTY_LIST}
#: SETITEMS, APPENDS: all values since a mark; SETITEM, APPEND: the last two values, the last value.
MARKED_FILLS, FILLS = b"ue", {ord("s"): 2, ord("a"): 1}
MARK, MEMOIZE, LONG, STOP = ord("("), 0x94, 0x8A, ord(".")
#: PROTO and FRAME, with the length of what follows.
IGNORED = {0x80: 1, 0x95: 8}


def load_plain(data: bytes) -> Any:
    """What the pickle describes, of plain containers, text and numbers.

    Raises:
        PickleRefused: the pickle does something else, or takes too much memory.
        IndexError, struct.error, TypeError, AttributeError: the pickle is damaged.
    """
    at = 0
    stack: list[Any] = []
    below: list[list[Any]] = []
    memo: list[Any] = []
    containers = 0
    while True:
        code = data[at]
        at += 1
        if code in NUMBERS:
            number = NUMBERS[code]
            stack.append(number.unpack_from(data, at)[0])
            at += number.size
        elif code in GETS:
            width = GETS[code]
            stack.append(memo[int.from_bytes(data[at : at + width], "little")])
            at += width
        elif code in TEXTS:
            begin = at + TEXTS[code]
            at = begin + int.from_bytes(data[at:begin], "little")
            if at > len(data):
                raise PickleRefused("it is cut")
            stack.append(data[begin:at].decode("utf-8", "replace"))
        elif code == MEMOIZE:
            memo.append(stack[-1])
        elif code in PUTS:
            end = at + PUTS[code]
            # Every pickler counts up; a jump would only allocate memory.
            if int.from_bytes(data[at:end], "little") != len(memo):
                raise PickleRefused("it keeps objects under numbers that no pickler gives")
            memo.append(stack[-1])
            at = end
        elif code == MARK:
            below.append(stack)
            stack = []
        elif code in CONTAINERS:
            containers += 1
            if containers > MAX_CONTAINERS:
                raise PickleRefused(f"it has over {MAX_CONTAINERS:,} containers; record with a smaller max_entries")
            stack = _push_container(code, stack, below)
        elif code in MARKED_FILLS:
            values, stack = stack, below.pop()
            _fill(stack[-1], values, code == ord("u"))
        elif code in FILLS:
            values = [stack.pop() for _ in range(FILLS[code])][::-1]
            _fill(stack[-1], values, code == ord("s"))
        elif code in CONSTANTS:
            stack.append(CONSTANTS[code])
        elif code == LONG:
            begin, at = at + 1, at + 1 + data[at]
            stack.append(int.from_bytes(data[begin:at], "little", signed=True))
        elif code in IGNORED:
            at += IGNORED[code]
        elif code == STOP:
            return stack.pop()
        else:
            raise _refusal(code)
        if len(stack) > MAX_WAITING or len(below) > MAX_DEPTH:
            raise _too_large(len(below))


def _refusal(code: int) -> PickleRefused:
    reason = CALLING.get(bytes([code]), f"contains what no snapshot contains (opcode {code:#x})")
    return PickleRefused(f"its pickle {reason}, and only plain dicts, lists, text and numbers are read")


def _too_large(depth: int) -> PickleRefused:
    if depth > MAX_DEPTH:
        return PickleRefused(f"its containers are nested more than {MAX_DEPTH} deep")
    return PickleRefused(f"more than {MAX_WAITING:,} values wait for their container")


def _push_container(code: int, stack: list[Any], below: list[list[Any]]) -> list[Any]:
    """Put a new container on the stack; the stack from here on."""
    if code == MARKED_TUPLE:
        items, stack = tuple(stack), below.pop()
        stack.append(items)
    elif code in TUPLES:
        begin = len(stack) - TUPLES[code]
        if begin < 0:
            raise IndexError
        stack[begin:] = [tuple(stack[begin:])]
    else:
        stack.append({} if code == EMPTY_DICT else [])
    return stack


def _fill(container: Any, values: list[Any], is_dict: bool) -> None:
    if is_dict:
        keys = values[::2]
        # Only text: hashing nested tuples can take forever.
        if type(container) is not dict or len(values) % 2 or not all(type(key) is str for key in keys):
            raise TypeError
        container.update(zip(keys, values[1::2], strict=True))
    elif type(container) is list:
        container += values
    else:
        raise TypeError
