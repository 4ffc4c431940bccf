"""Time of ops in a dtype that is wider than a model needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfkit._location import Location
from perfkit.measures.ops._inner_ops import InnerOps, KeyedSums
from perfkit.measures.ops._op_calls import OpCalls
from perfkit.measures.ops._tensor_arguments import TensorArgumentReader
from perfkit.measures.results.patterns import DtypeTime

_WIDE = {"double": "float64", "c10::complex<double>": "float64"}
_NARROW = frozenset(("float", "c10::Half", "c10::BFloat16", "c10::complex<float>"))


def find_wide_dtypes(calls: OpCalls, arguments: TensorArgumentReader, inner: InnerOps) -> Iterator[DtypeTime]:
    """Time in float64: the ops that read such a tensor of more than one element."""
    # A compiled region takes many tensors, of which one double says nothing about its kernels.
    aten = np.array([name.startswith("aten::") for name in calls.trace.names])[calls.trace.name[inner.rows]]
    chosen, mixed = [], []
    for i in np.flatnonzero(aten & arguments.mentions(inner.rows, _WIDE)).tolist():
        dtypes = {tensor.dtype for tensor in arguments(int(inner.rows[i])) if tensor.elements > 1}
        if dtypes & _WIDE.keys():
            chosen.append(i)
            mixed.append(bool(dtypes & _NARROW) and not inner.in_node[i])
    wide = np.array(chosen, np.int64)
    sums = KeyedSums()
    enters: set[Location | None] = set()
    for i, at in enumerate(inner.locations(wide)):
        sums.add(at, ns=float(inner.own[wide[i]]), count=1)
        if mixed[i]:
            enters.add(at)
    for at, total in sums.per_step(calls.steps):
        yield DtypeTime(dtype="float64", mixed=at in enters, at=at, **total)
