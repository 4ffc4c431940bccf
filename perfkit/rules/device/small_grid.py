"""Kernels are too small to fill the device.

Problem: a kernel with fewer blocks than the device has multiprocessors leaves the rest of them without
work while it runs; the device counts as busy.

How it shows: kernels that compute with such a grid take a quarter of the step or more, most of it in
kernels long enough that it is not the launch that limits.

Causes: a small batch; a reduction over one long dimension; a loop over samples or heads with a kernel each.

Fix: more work per kernel: a larger batch, one batched call instead of a loop.

    loader = DataLoader(dataset, batch_size=256)
    scores = torch.bmm(queries, keys)                  # not: one mm per head

Gain: at the high end the idle multiprocessors' share of these kernels' time; the low end is 0: whether
there is more work to do at once, a trace does not tell.

Source: torch-tb-profiler's SM efficiency and HTA count blocks per multiprocessor the same way. Matrix products
often split their work into few large blocks on purpose, so a quarter of the step is asked for (where a finding
counts as critical), and kernels shorter than 10 µs, which end before a launch does, are left to launch-bound.
Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import CRITICAL, busiest_device, device_part, severity_of, whole_of

ID = "small-grid"

#: A launch takes 5 to 10 µs on the host: below, what limits is how fast the host launches.
_LAUNCH_NS = 10_000
_ELSEWHERE = ("communication", "copy")


def check(measured: Measured) -> Iterator[Finding]:
    """Find time in kernels with fewer blocks than multiprocessors."""
    whole, device, kernels = whole_of(measured), busiest_device(measured), measured.kernels
    if whole is None or device is None or kernels is None or not kernels.total_ns:
        return
    small = [
        (row, row.total_ns * row.small_grid_share)
        for row in kernels.rows
        if row.small_grid_share and row.mean_ns >= _LAUNCH_NS and row.kernel_class not in _ELSEWHERE
    ]
    spent = sum(ns for _, ns in small)
    cost_ns = device_part(round(device.compute_ns * spent / kernels.total_ns), device, whole)
    if cost_ns < CRITICAL * whole.wall_ns:
        return
    small.sort(key=lambda one: -one[1])
    source = f"device {device.device}, grids of a few launches of each kernel"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Kernels with fewer blocks than the device has multiprocessors take {percent(cost_ns, whole.wall_ns)} of "
            f"the {whole.per} (mean {ms(spent / max(1, sum(row.count for row, _ in small)))})."
        ),
        advice="Give a kernel more to do: a larger batch, or one batched call instead of many small ones.",
        confidence="low",
        evidence=tuple(
            Evidence(row.name[:80], round(ns / 1e6, 3), "ms", f"{source}; grid {row.grid}") for row, ns in small[:5]
        ),
        cost_ns=cost_ns,
        saving_low_ns=0,
        saving_high_ns=cost_ns,
    )
