"""What is converted: copies to another layout, and time in a type wider than the model needs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from perfkit._location import Location
from perfkit.measures.ops._inner_ops import InnerOps, KeyedSums
from perfkit.measures.ops._op_calls import Calls
from perfkit.measures.ops._op_names import named
from perfkit.measures.ops._op_work import SIZES
from perfkit.measures.ops._tensor_arguments import SMALL, TensorArgumentReader, TensorArguments, shape_text
from perfkit.measures.results.patterns import DtypeTime, LayoutCopies

#: What a user writes to get another layout; an op that copies inside itself is not the user's conversion.
EXPLICIT = named("contiguous clone reshape flatten to copy_ _to_copy")


def find_layout_copies(calls: Calls, given: TensorArgumentReader, inner: InnerOps) -> Iterator[LayoutCopies]:
    """Copies between tensors of one type that lie with another dimension innermost."""
    chosen, shapes, sizes = [], [], []
    for at in inner.named(calls.trace, ("aten::copy_",)).tolist():
        row = int(inner.rows[at])
        if not inner.in_node[at] and calls.name(int(calls.of[row])) not in EXPLICIT:
            continue
        got = given(row)
        if got is None or len(got.shapes) < 2 or not _turned(got):
            continue
        size = math.prod(got.shapes[0]) * SIZES[got.dtypes[0]]
        if size >= SMALL:
            chosen.append(at)
            shapes.append(shape_text(got.shapes[0]))
            sizes.append(size)
    copies = np.array(chosen, np.int64)
    places = inner.places(calls, copies)
    # A backward copies gradients that come in another layout, too, where nobody converted anything.
    converted = {place for place, in_node in zip(places, inner.in_node[copies].tolist(), strict=True) if not in_node}
    sums = KeyedSums()
    for i, place in enumerate(places):
        if place not in converted:
            continue
        sums.add((place, shapes[i]), ns=float(inner.own[copies[i]]), bytes=sizes[i], count=1)
    for (place, shape), total in sums.by.items():
        yield LayoutCopies(
            op="aten::copy_",
            count=total["count"] / calls.steps,
            ns=round(total["ns"] / calls.steps),
            bytes=round(total["bytes"] / calls.steps),
            shape=shape,
            at=place,
        )


def _turned(got: TensorArguments) -> bool:
    """Whether the copy's two tensors, of one shape and type, have another dimension innermost in memory."""
    if got.shapes[0] != got.shapes[1] or got.dtypes[0] != got.dtypes[1]:
        return False
    one, other = got.strides[0], got.strides[1]
    if one is None or other is None:
        return False
    long = [i for i, length in enumerate(got.shapes[0]) if length > 1]
    if len(long) < 2 or any(one[i] == 0 or other[i] == 0 for i in long):
        return False
    return min(long, key=lambda i: one[i]) != min(long, key=lambda i: other[i])


_WIDE = {"double": "float64", "c10::complex<double>": "float64"}
_NARROW = frozenset(("float", "c10::Half", "c10::BFloat16", "c10::complex<float>"))


def find_wide_types(calls: Calls, given: TensorArgumentReader, inner: InnerOps) -> Iterator[DtypeTime]:
    """Time in float64: the ops that read such a tensor of more than one element."""
    chosen, mixed = [], []
    aten = np.array([name.startswith("aten::") for name in calls.trace.names])
    # A compiled region takes many tensors, of which one double tells nothing about its kernels.
    for at in np.flatnonzero(aten[calls.trace.name[inner.rows]] & given.mentions(inner.rows, _WIDE)).tolist():
        got = given(int(inner.rows[at]))
        if got is None:
            continue
        of_size = {dtype for shape, dtype in zip(got.shapes, got.dtypes, strict=True) if math.prod(shape) > 1}
        if of_size & _WIDE.keys():
            chosen.append(at)
            mixed.append(bool(of_size & _NARROW))
    wide = np.array(chosen, np.int64)
    sums = KeyedSums()
    enters: set[Location | None] = set()
    for i, place in enumerate(inner.places(calls, wide)):
        sums.add(place, ns=float(inner.own[wide[i]]), ops=1)
        if mixed[i] and not inner.in_node[wide[i]]:
            enters.add(place)
    for place, total in sums.by.items():
        yield DtypeTime(
            dtype="float64",
            ns=round(total["ns"] / calls.steps),
            ops=total["ops"] / calls.steps,
            mixed=place in enters,
            at=place,
        )
