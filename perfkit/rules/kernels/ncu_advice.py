"""A rule of Nsight Compute itself estimates a saving for a kernel, and its advice is repeated here.

Problem: Nsight Compute evaluates rules of its own for each launch. Some estimate which part of the launch's time their
advice saves.

How it shows: the details page of a report of Nsight Compute has rules with an estimated speedup for the whole launch
("global"), which together with the kernel's share is at least 5% of the profiled time.

Causes: as the rule says; its name and its section are in the evidence.

Fix: as the rule says. All rules of all kernels, also those without an estimate for the launch, are a table:

    perfkit diagnose kernels.csv --table kernel-advice
    ncu --import report.ncu-rep --page details --csv > kernels.csv     # the page that has them

Saving: ncu's estimate is of the launch alone, with clocks held and caches emptied, and an upper limit for many rules (a
partial wave "may account for up to 50%"). What it saves in a training step is unknown: apply it and compare two reports
with perfkit compare before.csv after.csv.

Source: the rules of Nsight Compute and their estimates since version 2023; earlier ones have texts only. The largest
estimate of each kernel is reported as information, because perfkit did not test it. Its savings do not add up. Kernels
below 5% of the profiled time are not reported. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import NEGLIGIBLE
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles, ToolAdvice
from perfkit.rules.kernels._profiled_kernels import kernels_where

ID = "ncu-advice"

#: Rules of a kernel that are evidence.
_SHOWN = 3
#: Characters of ncu's text in the advice: two or three of its sentences. The table has all of it.
_MAX_TEXT = 400


def check(profiles: KernelProfiles) -> Iterator[Finding]:
    """Find profiled kernels for which ncu's own rules estimate a saving."""
    for kernel in kernels_where(profiles, lambda row: bool(_estimated(row))):
        row = kernel.longest
        estimated = _estimated(row)
        top = estimated[0]
        if kernel.share * (top.saving_share or 0.0) < NEGLIGIBLE:
            continue
        yield kernel.finding(
            f", of which Nsight Compute's rule {top.rule} estimates to save {percent(top.saving_share or 0, 1)}",
            severity="info",
            advice=top.text if len(top.text) <= _MAX_TEXT else f"{top.text[: _MAX_TEXT - 1]}…",
            confidence="low",
            evidence=[
                Evidence.percent(one.rule, one.saving_share, 1, f"of the launch, by Nsight Compute ({one.section})")
                for one in estimated[:_SHOWN]
            ],
        )


def _estimated(row: KernelProfile) -> list[ToolAdvice]:
    """The rules with an estimate for the whole launch, largest first, as `KernelProfile.advice` is ordered."""
    return [one for one in row.advice if one.saving_share is not None and not one.is_local]
