"""Tensors are copied from one memory layout to another and back.

Problem: one layer wants the channels innermost (NHWC), the next one outermost (NCHW). Every change copies the whole
tensor in an order that caches handle badly, and again in the backward pass. Nothing is computed by it.

How it shows: copies between tensors of the same shape and type whose innermost dimensions differ, made by
`contiguous()`, `clone()` or `reshape()`, or kernels that convert layouts (cuDNN's nchwToNhwc), or on a GPU batch norms
with channels first, which have one block for each channel; together they cost 5% of the step or more.

Causes: `permute(...).contiguous()` around a layer that works on the last dimension (LayerNorm, Linear) in a network of
convolutions; half-precision convolutions on tensor cores with NCHW inputs; batch norms in bfloat16, which cuDNN does
not compute.

Fix: keep one layout from input to output.

    model = model.to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    y = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)     # views, no copies: x is channels last already

Saving: 1.0 to 1.9 times the time of these copies, because the ops next to them no longer read across the layout. Of
kernels that convert and of batch norms with channels first, half to all (chosen).

Source: PyTorch's channels-last tutorial; measured on six networks of convolutions on one CPU. Copies are recognized by
the strides in the trace; those below 64 KB are not counted. The threshold is 5% of the step. On an H200
convolutions of 128 channels in bfloat16 took 25.4 ms, 17.8 of them in such kernels, and 12.2 with channels last. The
backward of a batch norm of 32 channels took 9.5 ms for 268 MB, which the memory reads in 0.06 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from perfkit._format import ms
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.kernels import Kernels
from perfkit.measures.results.patterns import Patterns
from perfkit.rules._channels_first import is_channels_first_norm

ID = "layout-conversion"
CLAIMS = COMPUTING

#: The saving as a share of the time of copies (measured) and of kernels (chosen): low end, high end.
_COPIES = (1.0, 1.9)
_KERNELS = (0.5, 1.0)


def check(step: StepBudget, patterns: Patterns | None = None, kernels: Kernels | None = None) -> Iterator[Finding]:
    """Find copies that only change the layout: by op and line, and by kernel."""
    evidence: list[Evidence] = []
    low = cost = 0
    by_line: Counter[Location] = Counter()
    if patterns is not None and patterns.layout:
        total = sum(copies.ns for copies in patterns.layout)
        low, cost = (step.of_pattern(share * total, patterns) for share in _COPIES)
        for copies in patterns.layout:
            if copies.at is not None:
                by_line[copies.at] += copies.ns
        source = f"{patterns.source}, per step"
        evidence += [
            Evidence("copies", round(sum(copies.count for copies in patterns.layout), 1), "", source),
            Evidence("copied", round(sum(copies.bytes for copies in patterns.layout) / 2**20, 2), "MiB", source),
            Evidence("largest part", patterns.layout[0].shape, "", source),
        ]
    copied = cost > 0
    norms = 0
    if step.device is not None and kernels is not None:
        converting = step.of_kernels(kernels.classes_ns.get("layout conversion", 0), kernels)
        norms = step.of_kernels(sum(row.total_ns for row in kernels.rows if is_channels_first_norm(row.name)), kernels)
        copied = copied or converting > 0
        cost = min(step.wall_ns, cost + round(_KERNELS[1] * (converting + norms)))
        low = min(cost, low + round(_KERNELS[0] * (converting + norms)))
        of_kernels = {"kernels that convert": converting, "batch norms with channels first": norms}
        source = f"device {step.device.device}"
        evidence += [Evidence.ms(name, ns, source) for name, ns in of_kernels.items() if ns]
    if step.is_negligible(cost):
        return
    parts = [
        *(["copies to another memory layout"] if copied else []),
        *(["batch norms with channels first (a block for each channel)"] if norms else []),
    ]
    yield step.finding(
        cost=cost,
        saving=(low, cost),
        spent=max(by_line, key=lambda at: by_line[at], default=None),
        message=f"{' and '.join(parts).capitalize()} cost up to {ms(cost)}, {step.percent(cost)} of the {step.per}.",
        advice="Keep one layout: model and inputs in torch.channels_last, permute without contiguous().",
        evidence=tuple(evidence),
    )
