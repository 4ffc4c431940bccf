"""cudnn-benchmark-off: convolutions that were not tuned although all batches have one size."""

from __future__ import annotations

from typing import Any

from perfkit.rules.settings import cudnn_benchmark_off

MS = 1_000_000


def test_untuned_convolutions_of_one_size_are_information(build: Any) -> None:
    device = build.device(1000, compute=900, causes={"operators": 100})
    measures = (build.step(100, forward=100), device, build.kernels(("conv", "convolution", 800)))
    off = build.rank(devices=("A100",), settings={"cudnn.benchmark": "False"})
    on = build.rank(devices=("A100",), settings={"cudnn.benchmark": "True"})

    [finding] = build.findings(cudnn_benchmark_off, off, *measures)

    assert (finding.severity, finding.saving_low_ns, finding.saving_high_ns) == ("info", 0, 20 * MS)
    assert build.findings(cudnn_benchmark_off, on, *measures) == []
