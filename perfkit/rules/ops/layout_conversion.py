"""Tensors are copied from one memory layout to another and back.

Problem: a layer wants the channels innermost (NHWC), the next one outermost (NCHW), and every change
copies the whole tensor in an order that caches dislike, once more in the backward pass. Nothing is
computed by it.

How it shows: copies between tensors of one shape and type of which another dimension lies innermost,
made by `contiguous()`, `clone()` or `reshape()`, or kernels that convert layouts (cuDNN's nchwToNhwc), take
5% of the step or more.

Causes: `permute(...).contiguous()` around a layer that works on the last dimension (LayerNorm, Linear)
in a network of convolutions; half-precision convolutions on tensor cores, fed with NCHW.

Fix: keep one layout from input to output.

    model = model.to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    y = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)     # views, no copies: x is channels last already

Gain: 1.0 to 1.9 times the time of these copies: the ops beside them no longer read what lies across. Of
kernels that convert, half to all.

Source: PyTorch's channels-last tutorial. Six networks of convolutions with a norm on the last dimension, on
one CPU, one thread, gained 0.9, 1.05, 1.4, 1.4, 1.9 and 2.1 times the time of their copies. Copies are told
apart by the strides in the trace; those below 64 KB are left out. From 5% of the step on (see input-bound).
The GPU side: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._pattern_cost import op_part, where
from perfkit.rules._step_budget import NEGLIGIBLE, busiest_device, device_part, severity_of, whole_of

ID = "layout-conversion"

_GAIN = (1.0, 1.9)
_KERNELS_GAIN = (0.5, 1.0)


def check(measured: Measured) -> Iterator[Finding]:
    """Find copies that only change the layout: by op and line, else by kernel."""
    whole, patterns = whole_of(measured), measured.patterns
    if whole is None:
        return
    evidence: list[Evidence] = []
    low_ns = cost_ns = 0
    place: Location | None = None
    if patterns is not None and patterns.layout:
        by_place: dict[Location | None, int] = {}
        for copies in patterns.layout:
            by_place[copies.at] = by_place.get(copies.at, 0) + copies.ns
        low_ns, cost_ns = (op_part(share * sum(by_place.values()), patterns, whole) for share in _GAIN)
        place = max((one for one in by_place if one is not None), key=lambda one: by_place[one], default=None)
        source = f"{patterns.source}, per step"
        evidence += [
            Evidence("copies", round(sum(copies.count for copies in patterns.layout), 1), "", source),
            Evidence("copied", round(sum(copies.bytes for copies in patterns.layout) / 2**20, 2), "MiB", source),
            Evidence("largest part", patterns.layout[0].shape, "", source),
        ]
    device = busiest_device(measured)
    kernel_ns = measured.kernels.classes_ns.get("layout conversion", 0) if measured.kernels is not None else 0
    if device is not None and measured.kernels is not None and measured.kernels.total_ns and kernel_ns:
        # Kernels are of the whole trace and all devices: their share of compute time counts.
        part_ns = device_part(round(device.compute_ns * kernel_ns / measured.kernels.total_ns), device, whole)
        cost_ns = min(whole.wall_ns, cost_ns + round(_KERNELS_GAIN[1] * part_ns))
        low_ns = min(cost_ns, low_ns + round(_KERNELS_GAIN[0] * part_ns))
        evidence.append(Evidence("kernels that convert", round(part_ns / 1e6, 3), "ms", f"device {device.device}"))
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Copies to another memory layout cost up to {percent(cost_ns, whole.wall_ns)} of the {whole.per}: "
            f"{ms(cost_ns)} in which nothing is computed."
        ),
        advice="Keep one layout: model and inputs in torch.channels_last, permute without contiguous().",
        confidence="medium",
        evidence=tuple(evidence),
        cost_ns=cost_ns,
        saving_low_ns=low_ns,
        saving_high_ns=cost_ns,
        **where(place, measured),
    )
