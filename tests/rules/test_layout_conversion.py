"""layout-conversion: copies that only change the layout are reported at the line that makes most of them."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.measures.results.patterns import LayoutCopies
from perfkit.rules.ops import layout_conversion

MS = 1_000_000


def copies(line: int, ns: int) -> LayoutCopies:
    place = Location(file="net.py", line=line, function="Block.forward")
    return LayoutCopies(op="aten::copy_", count=6, ns=ns, bytes=5_900_000, shape="8x32x31x31", at=place)


def test_copies_are_added_up_and_reported_at_the_line_with_most_of_them(build: Any) -> None:
    patterns = build.patterns(step_ms=100, layout=(copies(25, 9 * MS), copies(26, 7 * MS), copies(26, 4 * MS)))

    [finding] = build.findings(layout_conversion, build.step(100), patterns)

    assert (finding.spent.file, finding.spent.line) == ("net.py", 26)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (20 * MS, 38 * MS)


def test_on_a_device_kernels_that_convert_count_too(build: Any) -> None:
    kernels = build.kernels(("nchwToNhwcKernel", "layout conversion", 200), ("gemm", "matmul", 800))
    device = build.device(1000, compute=1000)

    [finding] = build.findings(layout_conversion, build.traced_step(100), device, kernels)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (10 * MS, 20 * MS)
    assert finding.spent is None


def test_batch_norms_with_channels_first_count_too_and_are_told_of_channels_last(build: Any) -> None:
    kernels = build.kernels(
        ("void at::native::batch_norm_backward_kernel<c10::BFloat16, float, float, int>(x)", "reduction", 600),
        ("void at::native::batch_norm_collect_statistics_kernel<at::native::Var, float>(x)", "reduction", 200),
        ("void at::native::batch_norm_backward_reduce_channels_last_kernel<4, float>(x)", "reduction", 200),
    )

    [finding] = build.findings(layout_conversion, build.traced_step(100), build.device(1000, compute=1000), kernels)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (40 * MS, 80 * MS)
    assert finding.message.startswith("Batch norms with channels first (a block for each channel) cost up to 80.0 ms")
    assert "torch.channels_last" in finding.advice


def test_few_copies_are_not_reported(build: Any) -> None:
    patterns = build.patterns(step_ms=100, layout=(copies(25, 2 * MS),))

    assert build.findings(layout_conversion, build.step(100), patterns) == []
    assert build.findings(layout_conversion, build.step(100)) == []
