"""A convolution adds a bias that the batch norm behind it takes away again.

Problem: batch norm subtracts the mean of each channel, and a bias is part of that mean. Adding it, and
summing its gradient over all pixels in the backward pass, is work for nothing.

How it shows: a convolution with a bias right before a batch norm, and kernels for that bias (an
elementwise one in the forward pass, a reduction in the backward pass) that take 5% of the step or more.

Causes: `nn.Conv2d` has a bias by default.

Fix: leave it out.

    nn.Sequential(nn.Conv2d(64, 128, 3, bias=False), nn.BatchNorm2d(128), nn.ReLU())

Gain: all of these kernels. The low end is half, since cuDNN may fold a part into the convolution.

Source: torch's Conv2d+BatchNorm pattern and performance tuning guide. A convolution whose bias costs no kernel
of its own is not told. From 5% of the step on (see input-bound). Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._pattern_cost import op_part, where
from perfkit.rules._step_budget import NEGLIGIBLE, severity_of, whole_of

ID = "conv-bias-before-norm"


def check(measured: Measured) -> Iterator[Finding]:
    """Find what biases before batch norms cost on the device."""
    whole, patterns = whole_of(measured), measured.patterns
    if whole is None or patterns is None or not patterns.biases:
        return
    cost_ns = op_part(sum(one.ns for one in patterns.biases), patterns, whole)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    count = sum(one.count for one in patterns.biases)
    worst = max(patterns.biases, key=lambda one: one.ns)
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"{count:.0f} convolutions per step add a bias right before a batch norm, which takes it away again: "
            f"{ms(cost_ns)}."
        ),
        advice="Make these convolutions with bias=False.",
        confidence="medium",
        evidence=(
            Evidence("kernels for the biases", round(cost_ns / 1e6, 3), "ms", f"{patterns.source}, per step"),
            Evidence("convolutions", round(count, 1), "", f"{patterns.source}, per step"),
        ),
        cost_ns=cost_ns,
        saving_low_ns=cost_ns // 2,
        saving_high_ns=cost_ns,
        **where(worst.at, measured),
    )
