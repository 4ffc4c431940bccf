"""cuDNN chooses its convolutions by a rule of thumb, though all steps have the same shapes.

Problem: with `torch.backends.cudnn.benchmark` off, cuDNN picks an algorithm for each convolution without trying
any. With it on, the first step tries them all, and every later one uses the fastest: worth it where shapes stay
the same.

How it shows: the setting is off, convolutions take 5% of the device's time or more, and batches have one size.

Causes: it is torch's default.

Fix: switch it on, before the first step.

    torch.backends.cudnn.benchmark = True

Gain: not known beforehand: it depends on what the rule of thumb chose. At most a quarter of the convolutions'
time is told, at least nothing.

Source: torch's tuning guide. A quarter is a guess on the high side from public reports for ResNets, not measured
by us. Told for information. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._settings import is_on
from perfkit.rules._step_budget import NEGLIGIBLE, busiest_device, device_part, whole_of

ID = "cudnn-benchmark-off"

_AT_MOST = 0.25


def check(measured: Measured) -> Iterator[Finding]:
    """Find convolutions that were not tuned although shapes stay the same."""
    rank, kernels, whole, device = measured.rank, measured.kernels, whole_of(measured), busiest_device(measured)
    if rank is None or kernels is None or whole is None or device is None:
        return
    if rank.settings.get("cudnn.benchmark") != "False" or is_on(rank, "torch.deterministic"):
        return
    convolutions_ns = kernels.classes_ns.get("convolution", 0)
    share_ns = device_part(convolutions_ns, device, whole)
    # Sizes that do not vary give no `batches`; without a loader they are not known, and shapes may well differ.
    if measured.batches is not None or not rank.loaders or share_ns * _AT_MOST < NEGLIGIBLE * whole.wall_ns:
        return
    high_ns = min(whole.wall_ns, round(_AT_MOST * share_ns))
    yield Finding(
        rule=ID,
        severity="info",
        message=(
            f"Convolutions take {ms(share_ns)} of the {ms(whole.wall_ns)} {whole.per}, all batches have one size, "
            "and cudnn.benchmark is off."
        ),
        advice="Try torch.backends.cudnn.benchmark = True before the first step.",
        confidence="low",
        evidence=(Evidence("convolutions", round(share_ns / 1e6, 3), "ms", "kernels of the trace"),),
        cost_ns=high_ns,
        saving_low_ns=0,
        saving_high_ns=high_ns,
    )
