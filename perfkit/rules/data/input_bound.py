"""The step waits for its next batch.

Problem: training stops while a batch is read, decoded, transformed and collated. With `num_workers=0` all of that
happens in the training process itself, between two steps.

How it shows: the "data" phase takes 5% of the step or more. On a GPU only the part of the wait in which the device is
idle counts.

Causes: no loader workers, or too few for the cost of a sample; per-sample Python where one call per batch would do; a
`datasets.Dataset` that gives lists; the same files decoded again in every epoch, or an `.npz` file of which each access
to an array reads it all; slow storage; workers that start again in every epoch; a new iterator for each batch,
`next(iter(loader))`, which shuffles the whole dataset and starts all workers for one batch; a batch that takes long now
and then, for which the queue of the workers is too short; workers for batches that take less to make than to hand over.

Fix: let processes prepare batches while the step computes, and give them less to do per sample.

    loader = DataLoader(
        dataset,
        batch_size=32,
        num_workers=4,            # 0: in the training process, between two steps
        persistent_workers=True,  # keep them over epochs
        pin_memory=True,          # with a GPU
    )
    dataset = dataset.with_format("torch")  # a datasets.Dataset of long rows: tensors, and no Python lists
    batches = iter(loader)  # once; next(batches) in the step, and iter(loader) again after StopIteration

    class Reviews(Dataset):
        def __init__(self, texts):
            self.tokens = [tokenize(text) for text in texts]  # once, not in every __getitem__

Saving: at most the whole data phase, and on a CPU 15% more, because the rest of the step then finds its caches as it
left them. At least what background workers hide: the step then takes the longest of the rest of the step, data /
workers, and the work of all processes / CPUs, plus 1.3 ms for handing over a batch and, where the step computes on the
CPU, a quarter of the rest for sharing it. A fetch that waits needs no CPU for that. Where workers hide less than two
thirds, at least two thirds are saved by less work per sample: also with busy workers where each epoch gives the same
samples, and not where these differ. On a device, the minimum is no more than the time in which it was idle for data. A
loader that already has workers may wait for a disk: the minimum is 0, unless sampled workers show that they wait. Where
workers keep up but a few batches take long: at least three quarters of the wait beyond the usual one, by a longer
`prefetch_factor`. Where a worker makes a batch in less than half the time of handing it over: at most the wait without
that. Lists that a format replaces: at least half. Workers that do not keep up also cost the wait for cores they have.

Source: the threshold of 5% of the step is that of torch-tb-profiler for the same advice. A wait below a quarter of the
step is information where workers are busy for less than three quarters of their time, or where a batch costs less than
its handover; below 15% of the mean step where it is in steps of a rhythm. 1.3 ms was measured; these shares were
chosen. On an H200, of a step whose images were augmented in the loop, 36 to 47% were predicted and 8 workers saved 47%.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, shown_function
from perfkit._location import Location
from perfkit.findings import AdvisedEdit, Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import CRITICAL, RARE, MeanStepBudget, StepBudget, StepPart
from perfkit.limits.loader_workers import HANDOVER_NS
from perfkit.measures.results.host import SourceLines
from perfkit.rules._numpy_draws import draw_advice
from perfkit.rules._places import call_of, phases_of
from perfkit.rules.data import _equal_samples as equal_samples
from perfkit.rules.data._dataset_format import lists_found
from perfkit.rules.data._fetch_line import (
    asks_manager,
    fetch_line,
    is_in_loader,
    maker_of,
    named_by_object,
    reads_archive,
    waits_inside,
)
from perfkit.rules.data._loader_bursts import LoaderBursts, late_batches
from perfkit.rules.data._loader_use import LoaderUse, WorkerUse
from perfkit.rules.data._loader_workers import MAX_WORKERS, Processor
from perfkit.run.records import LineRow, Lines

ID = "input-bound"
WHAT_IF = ("hide-loader", None)
#: While a rank waits for a later one, its own wait for data costs nothing.
FOLLOWS = ("slow-rank",)
#: What a dataset in the training process saves there is mostly not needed.
FOLLOWS_AT_LINE = ("saved-views",)
CLAIMS = (Selector(phase="data"), Selector(owner="idle", names=("data loading",)))

#: What a ready batch costs in the process that made it (measured): no setting removes it.
_READY_NS = 100_000
#: The share that is saved at least where each sample becomes less work, or workers stay: chosen on programs that read
#: less, cached, or worked per batch, which saved 90 to 110% of the wait.
_LESS_WORK = 2 / 3
_HANDOVER = (
    "Workers have time to spare, so more of them save nothing: leave a CPU free for them, hand over less data (smaller "
    "dtypes, fewer tensors), or raise prefetch_factor where the cost of samples varies much."
)
_CHEAP = "A batch costs less than handing one over from a worker: only less work per batch could save something."
#: A worker is of no use where it needs this share of the time of handing over to make a batch, or less (chosen: the
#: training process then waits half as long at most), by this many samples of stacks.
_NEEDLESS, _NEEDLESS_SAMPLES = 0.5, 20


def check(
    step: StepBudget,
    mean: MeanStepBudget,
    processor: Processor,
    loader: LoaderUse,
    workers: WorkerUse | None = None,
    lines: Lines | None = None,
    source_lines: SourceLines | None = None,
    bursts: LoaderBursts | None = None,
) -> Iterator[Finding]:
    """Find the wait for data, the user's function behind it, and what workers or a longer queue would hide of it."""
    if bursts is not None and not mean.is_negligible(bursts.cost_ns):
        yield late_batches(mean, bursts)
        return
    # Only the first step of an epoch waits until its workers have started or have a batch, or each n-th one for a new
    # file: the typical step holds none of that.
    step = mean if loader.starts or loader.late_in_rhythm else step
    if (wait := _wait(step)) is None:
        return
    cost = _cost(step, wait.ns, loader, workers)
    if step.is_negligible(cost):
        return
    in_workers = loader.dataset if loader.num_workers and not (loader.starts or loader.restarted) else None
    hottest = fetch_line(lines, source_lines, in_workers) if lines is not None else None
    loader = loader._replace(
        restarted=loader.restarted and is_in_loader(hottest), manager=loader.manager if asks_manager(hottest) else None
    )
    waits = waits_inside(hottest)
    hidden_ns, assumption = _hidden(step, wait.ns, loader, workers, processor, waits=waits)
    # A batch that costs less than one from a worker: no setting of a loader makes it cheaper.
    cheap = not (step.on_device or loader.num_workers or hidden_ns) and wait.ns < HANDOVER_NS
    ready = cheap or (workers is not None and workers.keep_up)
    unavoidable = not (loader.starts or loader.restarted) and ready and cost < CRITICAL * step.wall_ns
    loader = loader._replace(once=not unavoidable and equal_samples.saves_once(loader, hottest))
    if instead := lists_found(step, wait, cost, loader, hottest) or _needless(step, wait, loader, workers):
        yield instead
        return
    minimum, assumption = _minimum(step, cost, loader, hidden_ns, assumption, ready=ready)
    beside = _beside(cost, wait.ns, hidden_ns, loader)
    alone, draws = _CHEAP if cheap else _HANDOVER, "" if unavoidable else _draws(hottest, lines)
    advised = MAX_WORKERS if waits or (workers is not None and workers.wait_inside) else processor.workers
    yield step.finding(
        severity="info" if unavoidable or _is_meant(loader, cost, step) else None,
        cost=cost,
        saving=(0 if unavoidable else minimum, step.maximum_saving(cost)),
        spent=hottest,
        change=None if draws else _change(loader, advised, hottest, lines, hidden=hidden_ns / cost),
        message=(
            f"Waiting for data takes {ms(wait.ns)} of the {ms(step.wall_ns)} {step.per}"
            f"{_cause(step.percent(wait.ns), loader, named_by_object(hottest, lines), unavoidable, beside)}."
        ),
        advice=alone if unavoidable else draws + _advice(loader, advised, named_by_object(hottest, lines), hidden_ns),
        edit=None if unavoidable or draws or reads_archive(hottest) else _edit(loader, advised, hidden_ns),
        confidence="low" if unavoidable else "high" if step.typical is not None else "medium",
        evidence=(
            Evidence.ms("waiting for data", wait.ns, wait.source),
            Evidence.percent("share of the step", wait.ns, step.wall_ns, step.source),
            Evidence.ms("minimum saving", minimum, assumption),
            *_evidence(loader, workers, hottest),
        ),
    )


def _draws(hottest: LineRow | None, lines: Lines | None) -> str:
    within = hottest.within if hottest is not None else {}
    return draw_advice(hottest, sorted(within, key=lambda library: -within[library])[:1], lines)


def _cost(step: StepBudget, wait_ns: int, loader: LoaderUse, workers: WorkerUse | None) -> int:
    """The wait, and what making batches takes from the steps meanwhile."""
    cost = max(0, wait_ns - _READY_NS)
    if loader.starts and step.typical is not None:
        # Starting processes takes CPUs and memory from the steps: a median step holds none of that.
        cost = max(cost, step.wall_ns - step.typical.median_ns)
    if workers is not None and not (workers.keep_up or step.on_device or step.is_negligible(cost)):
        cost += round(workers.crowds * step.wall_ns)
    return min(cost, step.wall_ns)


def _is_meant(loader: LoaderUse, cost: int, step: StepBudget) -> bool:
    """Whether a new file, or the first batch of an epoch, may take this much: as other work in a rhythm may."""
    return loader.late_in_rhythm and not loader.starts and cost < RARE * step.wall_ns


def _needless_ns(step: StepBudget, wait_ns: int, loader: LoaderUse, workers: WorkerUse | None) -> int | None:
    """What a batch takes its worker, where the training process could make it in less time than it waits for it."""
    if workers is None or step.on_device or loader.starts or loader.restarted or workers.samples < _NEEDLESS_SAMPLES:
        return None
    fetch_ns = round(workers.busy * loader.num_workers * step.wall_ns)
    return fetch_ns if fetch_ns < _NEEDLESS * min(wait_ns, HANDOVER_NS) else None


def _needless(step: StepBudget, wait: StepPart, loader: LoaderUse, workers: WorkerUse | None) -> Finding | None:
    """Workers hand over batches that take less to make; None where they do not."""
    if (fetch_ns := _needless_ns(step, wait.ns, loader, workers)) is None:
        return None
    cost = wait.ns - fetch_ns
    alone = {"persistent_workers": False} if loader.persistent_workers else {}
    return step.finding(
        severity="info" if cost < CRITICAL * step.wall_ns else None,
        cost=cost,
        saving=(0, step.maximum_saving(cost)),
        spent=None,
        change=loader.change,
        message=(
            f"Waiting for data takes {ms(wait.ns)} of the {ms(step.wall_ns)} {step.per} ({step.percent(wait.ns)}), "
            f"although a worker makes a batch in {ms(fetch_ns)}: the rest is handing it over."
        ),
        advice="Make batches in the training process: DataLoader(..., num_workers=0).",
        edit=AdvisedEdit.of(loader.change, num_workers=0, **alone),
        evidence=(Evidence.ms("waiting for data", wait.ns, wait.source), *_evidence(loader, workers, None)),
    )


def _wait(step: StepBudget) -> StepPart | None:
    """The wait for data that makes the step longer: on a device, no more than the device was idle."""
    waited, device = step.phase("data"), step.device
    if device is None:
        return waited
    if waited is None:
        ns = step.of_device(device.causes.get("data loading", 0))
        return StepPart(ns, f"idle of device {device.device} while the host loaded data")
    idle_ns = step.of_device(device.idle_ns)
    if waited.ns <= idle_ns:
        return waited
    return StepPart(idle_ns, f"{waited.source}; no more than device {device.device} was idle")


def _hidden(
    step: StepBudget,
    wait_ns: int,
    loader: LoaderUse,
    workers: WorkerUse | None,
    processor: Processor,
    *,
    waits: bool,
) -> tuple[int, str]:
    """What more workers hide at least, and the assumption behind it; ``waits``: a fetch needs no CPU."""
    now = loader.num_workers
    if not now and waits:
        hidden_ns = min(wait_ns - HANDOVER_NS, step.wall_ns - round(wait_ns / MAX_WORKERS))
        return max(0, hidden_ns), f"{MAX_WORKERS} workers that wait at the same time and need no CPU"
    if not now:
        return processor.hidden(step.wall_ns, wait_ns)
    if workers is None or not workers.wait_inside or now >= MAX_WORKERS:
        return 0, f"{now} workers exist already; whether they wait for a CPU or a disk was not measured"
    # The step waits for the workers, and more of them wait at the same time.
    rest_ns = step.wall_ns - wait_ns
    step_ns = max(rest_ns, round(step.wall_ns * now / MAX_WORKERS)) + HANDOVER_NS + processor.slowdown(rest_ns)
    return max(0, step.wall_ns - step_ns), f"{MAX_WORKERS} workers that wait at the same time and need no CPU"


def _minimum(
    step: StepBudget, cost: int, loader: LoaderUse, hidden_ns: int, assumption: str, *, ready: bool
) -> tuple[int, str]:
    """The minimum saving, and what it assumes; ``hidden_ns`` is what workers hide, and what that assumes.

    Where batches are ``ready`` when they are asked for, the wait is not for their making.
    """
    ns = hidden_ns
    if loader.restarted:
        ns = round(_LESS_WORK * cost)
        assumption = "one iterator: a third is left for the batches themselves"
    elif loader.starts:
        ns = round(_LESS_WORK * cost)
        assumption = "workers that stay: a third is left for the first batch of each epoch"
    elif loader.manager is not None:
        ns = round(_LESS_WORK * cost)
        assumption = "objects in the process that reads them: a third is left for the batches themselves"
    elif hidden_ns < _LESS_WORK * cost and loader.once and not ready:
        ns, assumption = round(_LESS_WORK * cost), "samples that are kept: a third is left for the batches themselves"
    elif hidden_ns < _LESS_WORK * cost and not (loader.num_workers or (hidden_ns and equal_samples.differ(loader))):
        ns, assumption = round(_LESS_WORK * cost), f"less work; {assumption} hide {ms(hidden_ns)}"
    if step.device is not None:
        starved_ns = step.of_device(step.device.causes.get("data loading", 0))
        ns = max(0, min(ns, starved_ns - HANDOVER_NS))
        assumption += f", no more than device {step.device.device} was idle for data"
    return min(ns, cost), assumption


def _change(
    loader: LoaderUse, advised: int, hottest: LineRow | None, lines: Lines | None, *, hidden: float
) -> Location | None:
    """The line that makes the loader where its arguments are the advice (workers hide most, or samples differ, so that
    nothing else does; ``hidden`` is the share), or where no line of the user's makes batches but the loop only waits
    for them; else the call whose work could be done once, or the line that makes the object that does it. Of objects
    that a manager's process keeps it is the line that makes the manager, of an .npz file the line itself.
    """
    if reads_archive(hottest):
        return None
    if loader.manager is not None:
        return loader.manager
    if loader.restarted and hottest is not None:
        return hottest.at
    alone = hidden >= _LESS_WORK or (hidden > 0 and equal_samples.differ(loader))
    arguments = not loader.once and (loader.num_workers < advised if loader.num_workers else alone)
    if loader.starts or arguments or hottest is None:
        return loader.change
    # What a transform of the user's own does for other samples each time is to be changed in it.
    if (loader.once or is_in_loader(hottest)) and (made := maker_of(hottest, lines)) is not None:
        return made[1]
    waits = hottest.worker is None and phases_of(hottest, lines) & {"forward", "backward", "optimizer"}
    return loader.change if waits else call_of(hottest, lines, once=loader.once)


def _edit(loader: LoaderUse, advised: int, hidden_ns: int) -> AdvisedEdit | None:
    """The arguments of the loader that `_advice` names."""
    if loader.restarted or loader.manager is not None or loader.once:
        return None
    keep = {} if loader.persistent_workers else {"persistent_workers": True}
    if loader.starts:
        return AdvisedEdit.of(loader.change, **({"num_workers": 0} if loader.remade else keep))
    if loader.num_workers >= advised or not (loader.num_workers or hidden_ns):
        return None
    return AdvisedEdit.of(loader.change, num_workers=advised, **keep)


def _beside(cost: int, wait_ns: int, hidden_ns: int, loader: LoaderUse) -> str:
    """What workers alone would hide, or what those that there are take from the steps."""
    if loader.num_workers:
        return f", and training waits another {ms(cost - wait_ns)} for cores that these use" if cost > wait_ns else ""
    is_partial = 0 < hidden_ns < _LESS_WORK * cost and not loader.restarted and loader.manager is None
    return f"; workers alone would hide {ms(hidden_ns)}" if is_partial else ""


def _cause(share: str, loader: LoaderUse, hottest: LineRow | None, unavoidable: bool, beside: str) -> str:
    """The end of the message: who prepares batches, and what is said ``beside`` that."""
    if loader.dataset is None:
        return f" ({share})"
    if loader.restarted:
        return f" ({share}): each step makes a new iterator of the DataLoader over {loader.dataset} for one batch"
    if not loader.num_workers:
        function = shown_function(hottest) if hottest is not None else loader.dataset
        return f": {function} runs in the training process, num_workers=0{beside}"
    if loader.starts:
        return f" ({share}), most of it for workers that were started {loader.starts} times"
    workers = f"{loader.num_workers} worker{'s' if loader.num_workers > 1 else ''}"
    spare = " with time to spare" if unavoidable else ""
    return f" ({share}), although batches are prepared by {workers}{spare}{beside}"


def _advice(loader: LoaderUse, advised: int, hottest: LineRow | None, hidden_ns: int) -> str:
    if reads_archive(hottest):
        return (
            "Read the arrays of the .npz file once, in __init__: each access reads and decompresses a whole array. Or "
            "save them as .npy, and open that with np.load(..., mmap_mode='r')."
        )
    if loader.manager is not None:
        return (
            "Keep the objects in the process that reads them: a dict, an array, or a tensor in shared memory. Each "
            "access to one of a Manager's asks its process, and copies the answer; workers wait for the same process."
        )
    if loader.restarted:
        return (
            "Make one iterator before the loop, batches = iter(loader), and take next(batches) in the step; make a new "
            "one where it raises StopIteration. Each one shuffles all samples and starts all workers."
        )
    if loader.remade:
        return (
            "Make the DataLoader once and go through it again, or use num_workers=0: each one starts its own workers."
        )
    if loader.starts:
        return "Keep the workers over epochs: DataLoader(..., persistent_workers=True), or make the epochs longer."
    now = loader.num_workers
    # With workers that were not sampled the line is where the loop waits, not where the work is done.
    known = hottest is not None and (not now or hottest.worker is not None)
    work = f"the work of {shown_function(hottest)}" if hottest is not None and known else "per-sample work"
    few = f"DataLoader(..., num_workers={advised}, persistent_workers=True)"
    few = few if now < advised and (now or hidden_ns) else ""
    if loader.once:
        return equal_samples.once_advice(work, few, hottest)
    if equal_samples.differ(loader):
        return equal_samples.each_time_advice(work, few)
    if not now and not hidden_ns:
        return f"Do {work} once, before training, or in one call per batch: workers would hide nothing of it here."
    if not now:
        return (
            f"Do {work} once, before training, or in background processes: "
            f"DataLoader(..., num_workers={advised}, persistent_workers=True)."
        )
    if now >= advised:
        return f"Make a sample cheaper: do {work} once, before training, or in one call per batch."
    keep = "" if loader.persistent_workers else ", persistent_workers=True"
    return f"Raise num_workers from {now} to {advised}{keep}, and do {work} once, before training."


def _evidence(loader: LoaderUse, workers: WorkerUse | None, hottest: LineRow | None) -> Iterator[Evidence]:
    """The loader's settings, what its workers did, and the time in the line."""
    if loader.dataset is not None:
        yield Evidence("num_workers", loader.num_workers, "", f"DataLoader over {loader.dataset}")
        yield Evidence("persistent_workers", str(loader.persistent_workers), "", "DataLoader")
    if workers is not None:
        source = f"{workers.samples} samples of stacks in {workers.processes} worker processes"
        yield Evidence("workers at work", round(100 * workers.busy, 1), "% of their time", source)
        if workers.on_cpu is not None:
            source = "processor time of the workers; the rest they wait for a disk or for a free CPU"
            yield Evidence("of that on a CPU", round(100 * workers.on_cpu, 1), "%", source)
    yield from equal_samples.evidence_of(loader.samples)
    if hottest is not None and hottest.samples:
        yield Evidence.ms("time in the line", hottest.host_ns, f"{hottest.samples} samples of stacks")
