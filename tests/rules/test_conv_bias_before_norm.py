"""conv-bias-before-norm: biases that a batch norm removes are reported at the most expensive line."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.measures.results.patterns import BiasBeforeNorm
from perfkit.rules.ops import conv_bias_before_norm

MS = 1_000_000


def bias(line: int, ms: float) -> BiasBeforeNorm:
    return BiasBeforeNorm(count=5, ns=round(ms * MS), at=Location(file="net.py", line=line, function="forward"))


def test_biases_cost_their_kernels(build: Any) -> None:
    patterns = build.patterns(biases=(bias(10, 4), bias(20, 8)))

    [finding] = build.findings(conv_bias_before_norm, build.step(100), patterns)

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (12 * MS, 6 * MS, 12 * MS)
    assert finding.spent == Location(file="net.py", line=20, function="forward")
    assert finding.message.startswith("10 convolutions per step add a bias")


def test_cheap_biases_are_not_reported(build: Any) -> None:
    assert build.findings(conv_bias_before_norm, build.step(100), build.patterns(biases=(bias(10, 4),))) == []
    assert build.findings(conv_bias_before_norm, build.step(100), build.patterns()) == []
