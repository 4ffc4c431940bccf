"""cuDNN chooses its convolution algorithms by a heuristic, though all steps have the same shapes.

Problem: with `torch.backends.cudnn.benchmark` off, cuDNN picks an algorithm for each convolution without timing any.
With it on, the first step times all of them and later steps use the fastest: worth it where shapes stay the same.

How it shows: the setting is off, convolutions take 5% of the device's time or more, and batches have one size.

Causes: it is torch's default.

Fix: switch it on before the first step.

    torch.backends.cudnn.benchmark = True

Saving: unknown before a trial, because it depends on what the heuristic chose. At most a quarter of the convolutions'
time is reported, and at least nothing.

Source: torch's tuning guide. A quarter is a high estimate from public reports for ResNets that perfkit did not measure.
Reported as information. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.measures.results.kernels import Kernels
from perfkit.measures.results.steps import BatchTime
from perfkit.rules._settings import is_on
from perfkit.run.records import Rank

ID = "cudnn-benchmark-off"
CLAIMS = COMPUTING

#: The share of the convolutions' time that is saved at most: chosen, see above.
_MAXIMUM = 0.25


def check(step: DeviceStepBudget, rank: Rank, kernels: Kernels, batches: BatchTime | None = None) -> Iterator[Finding]:
    """Find convolutions that were not tuned although shapes stay the same."""
    if rank.settings.get("cudnn.benchmark") != "False" or is_on(rank, "torch.deterministic"):
        return
    convolutions = step.of_device(kernels.classes_ns.get("convolution", 0))
    cost = _MAXIMUM * convolutions
    # Sizes that do not vary give no `BatchTime`; without a loader they are unknown, and shapes may well differ.
    if batches is not None or not rank.loaders or step.is_negligible(cost):
        return
    yield step.finding(
        severity="info",
        cost=min(step.wall_ns, cost),
        saving=(0, min(step.wall_ns, cost)),
        message=(
            f"Convolutions take {ms(convolutions)} of the {ms(step.wall_ns)} {step.per}, all batches have one size, "
            "and cudnn.benchmark is off."
        ),
        advice="Try torch.backends.cudnn.benchmark = True before the first step.",
        confidence="low",
        evidence=(Evidence.ms("convolutions", convolutions, "kernels of the trace"),),
    )
