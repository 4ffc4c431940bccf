"""dram-bound-kernels: kernels at the memory's peak that follow each other are named, with what to fuse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit.measures.results.kernel_profiles import DramChain
from perfkit.rules.kernels import dram_bound_kernels

NAMES = ("void at::native::mul_kernel<float>(T1)", "add_kernel", "sum_kernel", "div_kernel")


def profiles(build: Any, share: float, names: tuple[str, ...] = NAMES) -> Any:
    chain = DramChain(kernels=names, count=24, total_ns=5_000_000, share=share)
    return msgspec.structs.replace(build.kernel_profiles({}), chains=(chain,))


def test_the_finding_names_what_to_fuse_how_often_and_its_share(build: Any) -> None:
    [finding] = build.findings(dram_bound_kernels, profiles(build, 0.31))

    assert finding.message == (
        "mul_kernel<float>, add_kernel, sum_kernel and 1 more follow each other 24 times, take 31% of the profiled"
        " time, and are each limited by the device's memory: 4 kernels write and read what lies between them."
    )
    assert "torch.compile" in finding.advice
    assert (finding.cost_ns, finding.saving_high_ns) == (None, None)
    [pair] = build.findings(dram_bound_kernels, profiles(build, 0.31, NAMES[1:3]))
    assert pair.message.startswith("add_kernel and sum_kernel follow each other")


@pytest.mark.parametrize("share", [0.0, 0.04])
def test_chains_below_5_percent_of_the_profiled_time_are_not_reported(share: float, build: Any) -> None:
    assert build.findings(dram_bound_kernels, profiles(build, share)) == []
