"""Copies that only turn a tensor's layout are told at the line that makes most of them."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.measures.results.patterns import LayoutCopies
from perfkit.rules.ops.layout_conversion import check

MS = 1_000_000


def copies(line: int, ns: int) -> LayoutCopies:
    place = Location(file="net.py", line=line, function="Block.forward")
    return LayoutCopies(op="aten::copy_", count=6, ns=ns, bytes=5_900_000, shape="8x32x31x31", at=place)


def test_copies_are_added_up_and_told_at_the_line_with_most_of_them(build: Any) -> None:
    patterns = build.patterns(step_ms=100, layout=(copies(25, 9 * MS), copies(26, 7 * MS), copies(26, 4 * MS)))

    [finding] = check(build.measured(step=build.step(100), patterns=patterns))

    assert (finding.file, finding.line) == ("net.py", 26)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (20 * MS, 38 * MS)


def test_on_a_device_kernels_that_convert_count_too(build: Any) -> None:
    kernels = build.kernels(("nchwToNhwcKernel", "layout conversion", 200), ("gemm", "matmul", 800))
    device = build.device(1000, compute=1000)

    [finding] = check(build.measured(trace_step=build.step(100), devices=(device,), kernels=kernels))

    assert (finding.saving_low_ns, finding.saving_high_ns) == (10 * MS, 20 * MS)
    assert finding.file is None


def test_few_copies_are_no_finding(build: Any) -> None:
    patterns = build.patterns(step_ms=100, layout=(copies(25, 2 * MS),))

    assert list(check(build.measured(step=build.step(100), patterns=patterns))) == []
    assert list(check(build.measured(step=build.step(100)))) == []
