"""Changes that break parsers: of bytes, of the values in JSON and pickles, of cells in SQLite, CSV and text, of arrays.

`mutator` takes a sound file apart once. What it returns makes a mutated file in a fraction of the time that reading it
takes: values of JSON are replaced in the text, arrays and cells where they are.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import re
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

#: Makes a mutated file of a random number.
Mutate = Callable[[random.Random], bytes]

#: Parts of files: structure, halves of escapes and characters, words and numbers that a format lacks.
TOKENS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r\n", b"\n  },\n  {", b"]}", b";", b"\t"),
    *(b"==ERROR== x\n", b"\\u", b"\\ud800", b"\\udc00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\x1f", b"\x1b["),
    *(b"\xef\xbb\xbf", b"\xe2\x80\xae", b"NaN"),
    *(b"-inf", b"N/A", b"null", b"true", b"[]", b"{}", b'""', b"-", b"1e999", b"-0", b"0x1F", b"-1"),
    *(b"9" * 400, b"9223372036854775808", b"4611686018427387904", b"1711964646000000.125"),
    *(b"[" * 600, b"\x80\x04", b"PK\x03\x04"),
]  # fmt: skip
#: Values in place of others.
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 7, 255, 2**31, 2**53, 2**62, 2**63, -(2**63), 10**18, 10**30, 10**400),
    *(0.0, -0.5, 0.5, 1e-300, 1e18, 1e300, -1e300, 3.5, 1e15),
    *("", "x", "\u202ex\x1b[31m", "[red]x[/red]", "<script>", "\0", "9" * 30, "NaN", "é" * 50, "x" * 5_000),
    *("a/b/../../c.py", [], {}, [[]], [{}], {"": None}, [None] * 50, [1, 2, 3], {"x": 1}),
    *("train", "timed", "window", "data"),
]  # fmt: skip


#: One of this many inputs has one byte repeated: a reader whose time is the square of a line's length is found so.
GROWN_EVERY, GROWN = 100, 50_000


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Some changed, removed, repeated or inserted bytes; sometimes the beginning alone."""
    out = bytearray(data)
    if rng.randrange(GROWN_EVERY) == 0 and out:
        at = rng.randrange(len(out))
        out[at:at] = rng.choice((out[at : at + 1], b" ", b'"', b"[", b"9")) * GROWN
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, way = rng.randrange(len(out) + 1), rng.randrange(6)
        if way == 0 and out:
            out[min(at, len(out) - 1)] = rng.randrange(256)
        elif way == 1:
            out[at:at] = rng.choice(TOKENS)
        elif way == 2:
            del out[at : at + rng.choice((1, 2, 8, 40))]
        elif way == 3:
            other = rng.randrange(len(out) + 1)
            out[at:at] = out[other : other + rng.choice((1, 4, 30, 300))]
        elif way == 4:
            out[at : at + rng.choice((1, 3, 9))] = rng.choice(TOKENS)
        elif out:
            out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
    return bytes(out[: rng.randrange(len(out) + 1)] if rng.random() < 0.1 else out)


# -- JSON


class Value(NamedTuple):
    """Where a value is in a text: its own bytes, those from the name of its member on, and what it is an element of."""

    start: int
    end: int
    member: int
    separator: bytes

    @property
    def is_element(self) -> bool:
        """Whether it has no name, as in an array."""
        return self.member == self.start


#: A string, a bracket or sign, or a number or word.
_JSON_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s"\[\]{}:,]+', re.DOTALL)
_COMMA = re.compile(rb"\s*,\s*")
#: What stands in place of a value.
_TEXTS = [json.dumps(value).encode() for value in VALUES] + [
    *(b"1e999", b"-0", b"-0.0", b"NaN", b"-Infinity", b'"\\ud800"', b'"\\ud83d\\ude00"', b"9223372036854775808.5"),
]


def values_of(text: bytes) -> list[Value]:
    """Where the values of a JSON text are, of one or of several next to each other (JSON lines)."""
    found: list[Value] = []
    open_values: list[tuple[int, int, bytes]] = []  # the start, the member's start and the bracket of each open value
    name = -1  # where the name of the next value begins
    for token in _JSON_TOKEN.finditer(text):
        first, start = token[0][:1], token.start()
        in_object = bool(open_values) and open_values[-1][2] == b"{"
        if first in b",:":
            continue
        if first in b"]}":
            begun, member, _ = open_values.pop()
            found.append(Value(begun, token.end(), member, b"," if open_values else b"\n"))
        elif in_object and name < 0:
            name = start
        else:
            member, name = (name, -1) if in_object else (start, -1)
            if first in b"[{":
                open_values.append((start, member, first))
            else:
                found.append(Value(start, token.end(), member, b"," if open_values else b"\n"))
    return found


def _edit(rng: random.Random, text: bytes, values: list[Value]) -> tuple[int, int, bytes]:
    """One change: from where to where, and what is there instead."""
    value, way = rng.choice(values), rng.randrange(8)
    own = text[value.start : value.end]
    if way == 5:
        other = rng.choice(values)
        return value.start, value.end, text[other.start : other.end]
    if way == 6:  # with the comma after it, or before the last one
        after = _COMMA.match(text, value.end)
        before = len(text[: value.member].rstrip().removesuffix(b","))
        return (value.member, after.end(), b"") if after else (before, value.end, b"")
    if way == 7 and value.is_element:
        return value.start, value.end, value.separator.join([own] * rng.choice((2, 3, 41)))
    if way == 7:
        with contextlib.suppress(ValueError, OverflowError):
            number = int(own) if own.lstrip(b"-").isdigit() else float(own)
            return value.start, value.end, json.dumps(number * rng.choice((-1, 0, 1000, 1e-9, 10**12))).encode()
    return value.start, value.end, rng.choice(_TEXTS)


def json_mutator(text: bytes) -> Mutate:
    """JSON or JSON lines in which some values are others, are missing or are there twice, or other bytes."""
    values = values_of(text)

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.3 or not values:
            return mutate_bytes(rng, text)
        edits = sorted(_edit(rng, text, values) for _ in range(rng.choice((1, 1, 1, 2, 3, 6))))
        parts, at = [], 0
        for start, end, instead in edits:
            if start >= at:
                parts += [text[at:start], instead]
                at = end
        return b"".join([*parts, text[at:]])

    return mutate


def gzip_mutator(data: bytes, inner: Callable[[bytes], Mutate]) -> Mutate:
    """Gzip of what ``inner`` mutates, or other bytes of it."""
    of_text = inner(gzip.decompress(data))

    def mutate(rng: random.Random) -> bytes:
        return mutate_bytes(rng, data) if rng.random() < 0.2 else gzip.compress(of_text(rng), 1)

    return mutate


# -- pickles and tables


def mutate_tree(rng: random.Random, tree: Any) -> Any:
    """Plain data in which some values are others, are missing, or are there twice; changes ``tree``."""
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            places.append((one, key))
            waiting.append(one[key])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6)) if places else 0):
        holder, key = rng.choice(places)
        way = rng.randrange(8)
        with contextlib.suppress(KeyError, IndexError, OverflowError):
            if way < 5:
                holder[key] = rng.choice(VALUES)
            elif way == 5:
                other, name = rng.choice(places)
                holder[key] = json.loads(json.dumps(other[name])) if _is_json(other[name]) else None
            elif way == 6:
                del holder[key]
            elif isinstance(holder, list):
                holder += holder[key : key + 1] * rng.choice((1, 2, 40))
            elif isinstance(holder[key], int | float):
                holder[key] *= rng.choice((-1, 0, 1000, 1e-9, 10**12))
    return tree


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def pickle_mutator(data: bytes) -> Mutate:
    """A pickle with other values, or other bytes."""

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return mutate_bytes(rng, data)
        return pickle.dumps(mutate_tree(rng, pickle.loads(data)), rng.randrange(2, 6))

    return mutate


def msgpack_mutator(data: bytes) -> Mutate:
    """MessagePack with other values, or other bytes."""

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return mutate_bytes(rng, data)
        tree = mutate_tree(rng, msgspec.msgpack.decode(data))
        try:
            return msgspec.msgpack.encode(tree)
        except (OverflowError, TypeError):  # a whole number that the format lacks
            return mutate_bytes(rng, data)

    return mutate


def csv_mutator(data: bytes) -> Mutate:
    """A table in which some cells are others, or other bytes."""
    cells = [line.split(b",") for line in data.split(b"\n")]
    texts = [*TOKENS, b'"1,234.5"', b'"1.234,5"', b'"(1, 2, 3)"', b'"Kernel Name"', b'""']

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return mutate_bytes(rng, data)
        rows = [*cells]
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(len(rows))
            row = rows[at] = [*rows[at]]
            row[rng.randrange(len(row))] = rng.choice(texts)
        return b"\n".join(b",".join(row) for row in rows)

    return mutate


_WORD = re.compile(rb"[\w.+-]+|\s+|[^\w\s]")


def text_mutator(data: bytes) -> Mutate:
    """Lines in which some words are others, or are there many times, some lines are elsewhere, or other bytes."""
    lines = [_WORD.findall(line) for line in data.split(b"\n")]
    known = [word for line in lines for word in line]
    numbers = [str(value).encode() for value in VALUES if isinstance(value, int | float)] + [b"9" * 13 + b".5"]

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return mutate_bytes(rng, data)
        out = [*lines]
        for _ in range(rng.choice((1, 1, 2, 5))):
            at, way = rng.randrange(len(out)), rng.randrange(8)
            if way == 0:
                out[at] = rng.choice(out)
            elif way == 1:
                out[at:at] = [out[at]] * rng.choice((1, 2, 100))
            elif out[at]:
                line = out[at] = [*out[at]]
                word = rng.randrange(len(line))
                long = line[word] * (GROWN if rng.randrange(GROWN_EVERY) == 0 else 2)
                line[word] = rng.choice((b"", long, rng.choice(known), rng.choice(numbers), rng.choice(TOKENS)))
        return b"\n".join(b"".join(line) for line in out)

    return mutate


# -- arrays


def npz_mutator(data: bytes) -> Mutate:
    """Arrays with other values, types and shapes, without some of them, or other bytes of the file or of an array."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        sound = {name: packed.read(name) for name in packed.namelist()}

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return mutate_bytes(rng, data)
        entries = dict(sound)
        for _ in range(rng.choice((1, 1, 2, 4))):
            name = rng.choice([*entries] or ["x.npy"])
            if rng.random() < 0.1:
                entries.pop(name, None)
            elif rng.random() < 0.25:
                entries[name] = mutate_bytes(rng, entries.get(name, b""))
            else:
                entries[name] = _other_array(rng, sound.get(name, b""))
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as packed:
            for name, entry in entries.items():
                packed.writestr(name, entry)
        return out.getvalue()

    return mutate


def _other_array(rng: random.Random, entry: bytes) -> bytes:
    array = np.load(io.BytesIO(entry)) if entry else np.zeros(1)
    change: list[Callable[[], Any]] = [
        lambda: array[:-1] if array.ndim else array,
        lambda: np.full(array.shape, rng.choice((-1, -2, 0, 2**62, -(2**63), 10**18)), np.int64),
        lambda: np.full(array.shape, rng.choice((np.nan, np.inf, -1e300, 0.5))),
        lambda: np.full(array.shape, rng.choice(("", "x", "\u202e", "{", "[]", "9" * 50))),
        lambda: array.reshape(1, -1),
        lambda: np.concatenate([array.ravel()] * 3),
        lambda: array.astype(bool) if array.dtype.kind in "iufb" else array,
        lambda: np.array(rng.choice((1, "x", 0.5, True))),
        lambda: np.zeros((0,), rng.choice(("<i8", "<U1", "<M8[ns]", "<c16", "V8"))),
    ]
    out = io.BytesIO()
    np.save(out, rng.choice(change)())
    return out.getvalue()


# -- SQLite


def sqlite_mutator(data: bytes, folder: Path) -> Mutate:
    """A database with other cells, columns or tables, or other bytes."""
    file = folder / "mutated.sqlite"
    file.write_bytes(data)
    with contextlib.closing(sqlite3.connect(file)) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        columns = {name: [row[1] for row in database.execute(f'pragma table_info("{name}")')] for name in tables}
    values = [value for value in VALUES if not isinstance(value, list | dict)] + [b"", b"\xff" * 100]

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return mutate_bytes(rng, data)
        file.write_bytes(data)
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute("pragma synchronous = off")
            database.execute("pragma journal_mode = off")
            for _ in range(rng.choice((1, 1, 2, 4))):
                table = rng.choice(tables)
                column, way = rng.choice(columns[table]), rng.randrange(10)
                # A column or table that an earlier change removed; a whole number that SQLite lacks.
                with contextlib.suppress(sqlite3.Error, OverflowError):
                    if way < 7:
                        some = f"where rowid % {rng.choice((1, 2, 5))} = 0"
                        database.execute(f'update "{table}" set "{column}" = ? {some}', (rng.choice(values),))
                    elif way == 7:
                        database.execute(f'alter table "{table}" drop column "{column}"')
                    elif way == 8 and table != "StringIds":
                        database.execute(f'drop table "{table}"')
                    else:
                        database.execute(f'insert into "{table}" select * from "{table}"')
            database.commit()
        return file.read_bytes()

    return mutate


def mutator(file: Path, data: bytes, folder: Path) -> Mutate:
    """What mutates this file; ``folder`` is for files of its own."""
    if file.suffix == ".sqlite":
        return sqlite_mutator(data, folder)
    if file.suffix == ".gz":
        return gzip_mutator(data, lambda text: mutator(file.with_suffix(""), text, folder))
    kinds: dict[str, Callable[[bytes], Mutate]] = {
        ".jsonl": json_mutator,
        ".json": json_mutator,
        ".npz": npz_mutator,
        ".pickle": pickle_mutator,
        ".csv": csv_mutator,
        ".txt": text_mutator,
        ".prom": text_mutator,
        ".rank": msgpack_mutator,
    }
    return kinds[file.suffix](data)
