"""Whether two recordings did the same work, so that the step of one can be held against a prediction from the other."""

from __future__ import annotations

import re

import numpy as np

from perfkit._format import relative_change
from perfkit.replay._selection import active
from perfkit.replay.task_graph import TaskGraph
from perfkit.trace.columns import Kind

#: Ops that define the work of a model: a change of how it is done (fused, without syncs, with workers) keeps them.
_PRODUCTS = re.compile(
    r"^aten::(?:mm|addmm|bmm|baddbmm|(?:cudnn_|mkldnn_|miopen_)?convolution(?:_overrideable)?"
    r"|_?scaled_dot_product\w*|_efficient_attention_forward|_flash_attention_forward|convolution_backward)$"
)
#: Counts per step that differ by less are equal: the last batch of an epoch, a step that is logged.
_SAME = 0.05


def why_not_comparable(before: TaskGraph, after: TaskGraph) -> str | None:
    """What differs in the work of two recordings; None where nothing that is known does."""
    devices = [tuple(sorted({device.name for device in one.trace.metadata.devices})) for one in (before, after)]
    if before.on_device != after.on_device:
        return "only one of the recordings has device work"
    if before.on_device and all(devices) and devices[0] != devices[1]:
        return f"they ran on {' and '.join(devices[0])} and on {' and '.join(devices[1])}"
    sizes = [one.trace.metadata.world_size for one in (before, after)]
    if None not in sizes and sizes[0] != sizes[1]:
        return f"they are of {sizes[0]} and of {sizes[1]} ranks"
    if bool(before.steps.row.size) != bool(after.steps.row.size):
        return "only one of the recordings marks steps"
    one, other = _work(before), _work(after)
    for what in one:
        if one[what] and other[what] and abs(one[what] / other[what] - 1) > _SAME:
            change = relative_change(one[what], other[what])
            return f"{what} per step differ: {one[what]:,.0f} and {other[what]:,.0f} ({change})"
        if bool(one[what]) != bool(other[what]) and what != "bytes copied to the device":
            return f"only one of the recordings has {what}"
    return None


def _work(graph: TaskGraph) -> dict[str, float]:
    trace, steps = graph.trace, graph.last_step + 1
    inside = active(graph).tasks & (graph.task_step < steps)
    row = graph.tasks.row[inside]
    to_device = re.compile(r"HtoD")
    copies = row[trace.kind[row] == int(Kind.COPY)]
    copied = [int(trace.bytes[at]) for at in copies.tolist() if to_device.search(trace.names[trace.name[at]])]
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & trace.name_matches(_PRODUCTS))
    if graph.steps.row.size:
        begin, end = int(graph.steps.start_ns[0]), int(graph.steps.end_ns[-1])
        ops = ops[(trace.start_ns[ops] >= begin) & (trace.start_ns[ops] < end)]
    return {
        "products of matrices and convolutions": ops.size / steps,
        "bytes copied to the device": sum(copied) / steps,
    }
