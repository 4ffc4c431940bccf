"""Where tensors in float64 come from: the lines that take numpy's arrays, and the names of the program's tensors."""

from __future__ import annotations

import ast
import itertools
import linecache
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from perfkit._location import Location
from perfkit.record.program_values import is_plain, is_tensor, own_attribute, own_attributes, parts_of, unseen
from perfkit.record.samplers.source_lookup import MAX_FILES, MAX_LINES, last_name, nodes_of
from perfkit.record.watchers._user_locals import locals_of, user_frames

#: Types, and methods that convert to one, other than numpy's double.
_OTHER_TYPES = frozenset(
    (
        "float",
        "half",
        "bfloat16",
        "int",
        "long",
        "bool",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
    )
)
#: How long values are looked at for names, once (chosen): some thousand variables, attributes and parts of modules.
_MAX_NS = 5_000_000
#: Parts of a tuple, a list or a dict of which each is looked at.
_MAX_PARTS = 16


def find_double_arrays(files: Iterable[str], names: Collection[str] = ()) -> tuple[Location, ...]:
    """The lines that call ``from_numpy`` where nothing around or inside the call names another type than numpy's.

    With ``names`` those of them whose tensor gets one of these names: ``x = from_numpy(...)``, ``self.x = ...``, and
    ``register_buffer("x", ...)``.
    """
    found = []
    for file in itertools.islice(files, MAX_FILES):
        if not any("from_numpy" in line for line in linecache.getlines(file)):
            continue
        converted: set[int] = set()
        named: set[int] = set()
        for _, node in nodes_of(file):
            if names and any(name in names for name in _names_given(node)):
                named.update(map(id, ast.walk(node)))
            if not isinstance(node, ast.Call):
                continue
            inside = list(ast.walk(node))
            if any(isinstance(inner, ast.Attribute) and inner.attr in _OTHER_TYPES for inner in inside):
                converted.update(map(id, inside))
            elif (
                last_name(node.func) == "from_numpy" and id(node) not in converted and (not names or id(node) in named)
            ):
                found.append(Location(file=file, line=node.lineno, function="from_numpy(...)"))
    return tuple(found[:MAX_LINES])


def _names_given(node: ast.AST) -> Iterator[str | None]:
    """The names that an assignment, or the registration of a buffer, gives to a value."""
    if isinstance(node, ast.Assign):
        yield from map(last_name, node.targets)
    elif isinstance(node, ast.Call) and last_name(node.func) == "register_buffer":
        yield from (one.value for one in node.args[:1] if isinstance(one, ast.Constant) and isinstance(one.value, str))


@unseen
def names_of_doubles() -> frozenset[str]:
    """The names of the tensors in float64 that the running frames of the user's have, also as parts of their objects.

    Read are local variables, what they contain, the attributes of the user's objects, of modules and of datasets.
    """
    waiting: deque[tuple[str, Any]] = deque(pair for frame in user_frames() for pair in locals_of(frame))
    found: set[str] = set()
    seen: set[int] = set()
    until_ns = time.perf_counter_ns() + _MAX_NS
    while waiting and time.perf_counter_ns() < until_ns:
        name, value = waiting.popleft()
        if is_tensor(value):
            if is_plain(value) and value.dtype is torch.float64:
                found.add(name)
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += _parts_of(name, value)
    return frozenset(found)


def _parts_of(name: str, value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, (tuple, list)):
        return [(name, part) for part in itertools.islice(parts_of(value), _MAX_PARTS)]
    if issubclass(kind, dict):
        parts = itertools.islice(dict.items(value), _MAX_PARTS)
        return [(key if type(key) is str else name, part) for key, part in parts]
    if issubclass(kind, torch.nn.Module):
        own = vars(value)
        # Its buffers, parameters and modules are in dicts.
        inside = (pair for part in list(own.values()) if type(part) is dict for pair in list(part.items()))
        return [*own.items(), *inside]
    if issubclass(kind, torch.utils.data.DataLoader):
        return [(name, own_attribute(value, "dataset"))]
    if issubclass(kind, torch.utils.data.TensorDataset):
        return [(name, own_attribute(value, "tensors"))]
    return list(own_attributes(value).items())
