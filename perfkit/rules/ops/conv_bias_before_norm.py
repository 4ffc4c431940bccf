"""A convolution adds a bias that the batch norm after it removes again.

Problem: batch norm subtracts the mean of each channel, and a bias is part of that mean. Adding it, and summing its
gradient over all pixels in the backward pass, has no effect on the result.

How it shows: a convolution with a bias right before a batch norm, and kernels for that bias (an elementwise one in the
forward pass, a reduction in the backward pass) that take 5% of the step or more.

Causes: `nn.Conv2d` has a bias by default.

Fix: create the convolution without one.

    nn.Sequential(nn.Conv2d(64, 128, 3, bias=False), nn.BatchNorm2d(128), nn.ReLU())

Saving: all of these kernels. The low end is half (chosen), since cuDNN may fold a part into the convolution.

Source: torch's Conv2d+BatchNorm pattern and performance tuning guide. A convolution whose bias has no kernel of its own
is not reported. The threshold is 5% of the step. Found on an H200, where no correction was timed.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.patterns import Patterns

ID = "conv-bias-before-norm"
CLAIMS = COMPUTING


def check(step: StepBudget, patterns: Patterns) -> Iterator[Finding]:
    """Find what biases before batch norms cost on the device."""
    cost = step.of_pattern(sum(one.ns for one in patterns.biases), patterns)
    if not patterns.biases or step.is_negligible(cost):
        return
    count = sum(one.count for one in patterns.biases)
    source = f"{patterns.source}, per step"
    yield step.finding(
        cost=cost,
        saving=(cost // 2, cost),
        spent=max(patterns.biases, key=lambda one: one.ns).at,
        message=f"{count:.0f} convolutions per step add a bias that a batch norm then removes: {ms(cost)}.",
        advice="Create these convolutions with bias=False.",
        evidence=(
            Evidence.ms("kernels for the biases", cost, source),
            Evidence("convolutions", round(count, 1), "", source),
        ),
    )
