"""Kernels of a report of Nsight Compute that a rule applies to, and the finding about one: one per name, for all grids.

Such a finding has no cost, because kernels that are profiled one by one have no step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import NEGLIGIBLE
from perfkit.measures.device._kernel_classes import class_of
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles, short_name

#: Why such a finding has no cost.
NO_STEP = Evidence.ms(
    "cost per step",
    None,
    "ncu runs each kernel alone, usually with clocks held and caches emptied, so its report has no step",
)
#: Kernels that come with a library: cuDNN's, cuBLAS', CUTLASS', torch's own, CUB's, NCCL's, cuFFT's.
_OF_A_LIBRARY = re.compile(
    r"at::native|cudnn|cublas|cutlass|xmma|nvjet|^sm\d\d+_|^(?:volta|turing|ampere|hopper)_|cub::|thrust::|::bn_[fb]w"
    r"|^bn_[fb]w|nccl|pytorch_flash|(?:vector|regular)_fft"
)
_CHOSEN_BY = (
    "A library brings this kernel, and chooses it by shapes, dtypes and memory layout: try a larger batch, sizes that "
    "are multiples of 8, bfloat16, torch.channels_last for convolutions, or torch.compile, which writes its own."
)
_CHANNELS_LAST = (
    "Keep one layout: with model and images in torch.channels_last (or torch.contiguous_format) nothing is converted."
)
#: A name in a sentence is cut to this length; the table of kernels has all of it.
_MAX_NAME = 60


class ProfiledKernel(NamedTuple):
    """The launches of one kernel for which a condition holds, longest first, and their share of what was profiled."""

    name: str
    rows: list[KernelProfile]
    share: float
    share_of: str

    @property
    def longest(self) -> KernelProfile:
        """The grid and block that took most time: it stands for all launches."""
        return self.rows[0]

    def finding(
        self, problem: str, *, evidence: Iterable[Evidence], advice: str, in_code: bool = False, **others: Any
    ) -> Finding:
        """A finding whose message is the kernel, its share and then ``problem``.

        Evidence without a value is left out; ``others`` are further fields of `Finding`. With ``in_code`` the advice is
        about the kernel's code: of a library's kernel it is instead what makes the library choose another one.
        """
        if in_code and class_of(self.longest.name) == "layout conversion":
            advice = _CHANNELS_LAST
        elif in_code and _OF_A_LIBRARY.search(self.longest.name):
            advice = _CHOSEN_BY
        row = self.longest
        shape = f"grid {row.grid}, block {row.block}{' and others' if len(self.rows) > 1 else ''}"
        mean_us = round(row.mean_ns / 1e3, 3) if row.mean_ns is not None else None
        launch = f"launch {row.id} of the report" if row.id is not None else "the longest launch"
        known = (
            Evidence("launches", sum(each.launches for each in self.rows), "", shape),
            Evidence("time of a launch", mean_us, "µs", f"{ms(row.mean_ns or 0)}, alone; {launch}"),
            *evidence,
        )
        return Finding(
            message=f"{self.name} takes {percent(self.share, 1)} of the {self.share_of}{problem}.",
            evidence=(*(one for one in known if one.value is not None), NO_STEP),
            range=self.name,
            advice=advice,
            **others,
        )


def kernels_where(profiles: KernelProfiles, holds: Callable[[KernelProfile], bool]) -> list[ProfiledKernel]:
    """The kernels whose launches with a condition take 5% of what was profiled, or of all launches; longest first."""
    by_name: dict[str, list[KernelProfile]] = {}
    for row in profiles.rows:
        if row.share is not None and holds(row):
            by_name.setdefault(row.name, []).append(row)
    share_of = "profiled time" if profiles.total_ns is not None else "profiled launches"
    found = [
        ProfiledKernel(shown_name(name), rows, sum(row.share or 0.0 for row in rows), share_of)
        for name, rows in by_name.items()
    ]
    return sorted((one for one in found if one.share >= NEGLIGIBLE), key=lambda one: -one.share)


def throughputs(**shares: float | None) -> list[Evidence]:
    """Throughputs as evidence in percent of their peak."""
    return [Evidence.percent(f"{name} throughput", share, 1, "of peak, mean by time") for name, share in shares.items()]


def shown_name(name: str) -> str:
    """A kernel's name in a sentence."""
    short = short_name(name)
    return short if len(short) <= _MAX_NAME else f"{short[: _MAX_NAME - 1]}…"
