"""Batches that take long now and then, in workers that keep up on average: how large a queue hides them."""

from __future__ import annotations

import math
from typing import NamedTuple

from perfkit._format import ms
from perfkit._location import Location
from perfkit.findings import AdvisedEdit, Evidence, Finding
from perfkit.ledger.step_budget import MeanStepBudget
from perfkit.measures.results.loop import LoopTime
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.steps import Throughput, TypicalStep
from perfkit.rules._places import to_edit
from perfkit.rules.data._loader_use import LoaderUse, WorkerUse, training_loader
from perfkit.run.records import Rank

#: What torch's DataLoader takes where it is not given.
_DEFAULT_FACTOR = 2
#: More batches than this wait in memory: then the work of a sample has to become even (chosen).
_MAX_WAITING = 128
#: Two long steps may be chance; each pass over the loader also begins with one.
_MIN_BURSTS = 3
#: The share of the waits for late batches that a queue of the advised length saves at least: chosen, 86 to 102% was
#: measured with four loaders.
_QUEUED = 0.75


class LoaderBursts(NamedTuple):
    """Waits for a batch that takes long, in a few steps; the others find their batch ready.

    ``cost_ns`` is the wait in the mean step beyond that in the typical one, ``longest_ns`` the longest wait beyond the
    usual one, ``late`` the number of long steps. ``factor`` is the `prefetch_factor` in use, and ``advised`` the one
    whose queue lasts for the longest wait. ``change`` is the line that sets the loader up.
    """

    cost_ns: int
    longest_ns: int
    late: int
    workers: int
    factor: int
    advised: int
    change: Location | None

    @classmethod
    def from_measurements(cls, found: Measurements) -> LoaderBursts | None:
        """None where workers do not keep up, most of the wait is not in long steps, or no queue would last for them."""
        loader, workers, loop = training_loader(found), WorkerUse.from_measurements(found), found.get(LoopTime)
        use, step, times = LoaderUse.from_measurements(found), found.get(TypicalStep), found.get(Throughput)
        mean = MeanStepBudget.from_measurements(found)
        if loader is None or loop is None or step is None or times is None or mean is None or mean.mean is None:
            return None
        if workers is None or not workers.keep_up or use.starts or use.restarted or step.wall_ns <= 0:
            return None
        long = [part for part in loop.parts if part.use in ("rare", "irregular") and part.phase == "data"]
        late = sum(part.steps for part in long)
        if late < max(_MIN_BURSTS, 1 + 2 * (loader.iterators or 1)):
            return None
        longest = max((one.beyond_ns for one in times.slowest if one.phase == "data"), default=0)
        waited, usual = mean.mean.phases_ns.data, step.phases_ns.data
        if not longest or waited is None or usual is None or waited - usual < usual:
            return None  # most of the wait is in the steps that are not long
        factor = loader.prefetch_factor or _DEFAULT_FACTOR
        # The loop takes batches in their order: while one is late, it uses up those that came before it. A step takes
        # one of them, and ``num_workers x prefetch_factor`` are there at most.
        advised = factor + math.ceil(longest / (loader.num_workers * step.wall_ns))
        if advised * loader.num_workers > _MAX_WAITING:
            return None
        change = to_edit(found.get(Rank), loader.created_at, "dataloader_prefetch_factor", "dataloader_num_workers")
        return cls(max(0, waited - usual), longest, late, loader.num_workers, factor, advised, change)


def late_batches(step: MeanStepBudget, bursts: LoaderBursts) -> Finding:
    """Workers keep up on average, and a batch that takes long now and then finds their queue too short."""
    queue = bursts.advised * bursts.workers
    keep = f"{bursts.workers} workers keep" if bursts.workers > 1 else "one worker keeps"
    # A device may have had work queued during the wait: how long it was idle then is not known of single steps.
    low = 0 if step.on_device else _QUEUED * bursts.cost_ns
    return step.finding(
        cost=bursts.cost_ns,
        saving=(low, step.maximum_saving(bursts.cost_ns)),
        spent=None,
        change=bursts.change,
        message=(
            f"Now and then a batch is late, although {keep} up on average: {bursts.late} steps were longer, by up to "
            f"{ms(bursts.longest_ns)} of waiting for data. The waits take {step.shown(bursts.cost_ns)}."
        ),
        advice=(
            f"Make the queue longer: DataLoader(..., prefetch_factor={bursts.advised}), which keeps up to {queue} "
            "batches in memory; or make the cost of samples more even."
        ),
        edit=AdvisedEdit.of(bursts.change, prefetch_factor=bursts.advised),
        confidence="medium",
        evidence=(
            Evidence("longer steps", bursts.late, "", step.source),
            Evidence.ms("longest wait beyond the usual one", bursts.longest_ns, "the slowest steps"),
            Evidence("prefetch_factor", bursts.factor, "", "DataLoader"),
            Evidence("num_workers", bursts.workers, "", "DataLoader"),
        ),
    )
