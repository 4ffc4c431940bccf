"""Changes that break parsers: of bytes, of the values in JSON and pickles, of cells in SQLite and CSV, of arrays."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Some changed, removed, repeated or inserted bytes; sometimes the beginning alone."""
    out = bytearray(data)
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


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    """JSON with other values, or other bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    return json.dumps(mutate_tree(rng, json.loads(data))).encode()


def mutate_lines(rng: random.Random, data: bytes) -> bytes:
    """JSON lines with other values, or other bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    rows = mutate_tree(rng, [json.loads(line) for line in data.splitlines()])
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def mutate_gzip(rng: random.Random, data: bytes) -> bytes:
    """Gzip of JSON with other values, or other bytes of either."""
    if rng.random() < 0.2:
        return mutate_bytes(rng, data)
    return gzip.compress(mutate_json(rng, gzip.decompress(data)), 1)


def mutate_pickle(rng: random.Random, data: bytes) -> bytes:
    """A pickle with other values, or other bytes."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, data)
    return pickle.dumps(mutate_tree(rng, pickle.loads(data)), rng.randrange(2, 6))


def mutate_csv(rng: random.Random, data: bytes) -> bytes:
    """A table in which some cells are others, or other bytes."""
    if rng.random() < 0.5:
        return mutate_bytes(rng, data)
    rows = [line.split(b",") for line in data.split(b"\n")]
    for _ in range(rng.choice((1, 2, 5))):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(
            [*TOKENS, b'"1,234.5"', b'"1.234,5"', b'"(1, 2, 3)"', b'"Kernel Name"', b'""']
        )
    return b"\n".join(b",".join(row) for row in rows)


def mutate_npz(rng: random.Random, data: bytes) -> bytes:
    """Arrays with other values, types and shapes, without some of them, or other bytes."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, data)
    with np.load(io.BytesIO(data)) as packed:
        arrays = {name: packed[name] for name in packed.files}
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice(list(arrays) or ["x"])
        array = arrays.get(name, np.zeros(1))
        change: list[Callable[[], Any]] = [
            lambda array=array: array[:-1] if array.ndim else array,
            lambda array=array: np.full(array.shape, rng.choice((-1, -2, 0, 2**62, -(2**63), 10**18)), np.int64),
            lambda array=array: np.full(array.shape, rng.choice((np.nan, np.inf, -1e300, 0.5))),
            lambda array=array: np.full(array.shape, rng.choice(("", "x", "\u202e", "{", "[]", "9" * 50))),
            lambda array=array: array.reshape(1, -1),
            lambda array=array: np.concatenate([array.ravel()] * 3),
            lambda array=array: array.astype(bool) if array.dtype.kind in "iufb" else array,
            lambda: np.array(rng.choice((1, "x", 0.5, True))),
            lambda: np.zeros((0,), rng.choice(("<i8", "<U1", "<M8[ns]", "<c16", "V8"))),
        ]
        if rng.random() < 0.1:
            arrays.pop(name, None)
        else:
            arrays[name] = rng.choice(change)()
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def mutate_sqlite(rng: random.Random, data: bytes, folder: Path) -> bytes:
    """A database with other cells, columns or tables, or other bytes."""
    if rng.random() < 0.5:
        return mutate_bytes(rng, data)
    file = folder / "mutated.sqlite"
    file.write_bytes(data)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("pragma synchronous = off")
        database.execute("pragma journal_mode = off")
        for _ in range(rng.choice((1, 1, 2, 4))):
            table = rng.choice([name for (name,) in database.execute("select name from sqlite_master")])
            columns = [row[1] for row in database.execute(f'pragma table_info("{table}")')]
            column, way = rng.choice(columns), rng.randrange(10)
            with contextlib.suppress(sqlite3.Error, OverflowError):
                if way < 7:
                    value = rng.choice([v for v in VALUES if not isinstance(v, list | dict)] + [b"", b"\xff" * 100])
                    text = value.encode("utf-8", "surrogatepass").decode() if isinstance(value, str) else value
                    some = f"where rowid % {rng.choice((1, 2, 5))} = 0"
                    database.execute(f'update "{table}" set "{column}" = ? {some}', (text,))
                elif way == 7:
                    database.execute(f'alter table "{table}" drop column "{column}"')
                elif way == 8 and table != "StringIds":
                    database.execute(f'drop table "{table}"')
                else:
                    database.execute(f'insert into "{table}" select * from "{table}"')
        database.commit()
    return file.read_bytes()
