"""The step waits for its next batch.

Problem: training stands still while a batch is read, decoded, transformed and collated. With
`num_workers=0` all of that happens in the training process itself, between two steps.

How it shows: the "data" phase takes 5% of the step or more. On a GPU the device is idle meanwhile;
a wait that the device does not notice (it still has queued work) is not counted.

Causes: no loader workers; too few of them for what a sample costs; per-sample Python where one
vectorised call per batch would do; decoding the same files again in every epoch; slow storage.

Fix: let processes prepare batches while the step computes, and give them less to do per sample.

    loader = DataLoader(
        dataset,
        batch_size=32,
        num_workers=4,            # 0 means: in the training process, between two steps
        persistent_workers=True,  # keep them over epochs
        pin_memory=True,          # with a GPU
    )

    class Reviews(Dataset):
        def __init__(self, texts):
            self.tokens = [tokenize(text) for text in texts]  # once, not in every __getitem__

Gain: at most the whole data phase (the work is gone), and on a CPU 15% more, since the rest then finds its
caches as it left them. At least what W background workers hide, W being one less than the CPUs and at most
4: the step then takes the longest of the rest of the step, data / W, and (data + rest x threads) / CPUs,
because workers and training share the processor; threads is torch's thread count where the step computes on
the CPU, and 1 where a device computes. Charged on top: 1.3 ms for handing over a batch from a worker, and a
quarter of the rest where it computes on the CPU (shared caches and cores). Where workers hide less than two
thirds, the low end is two thirds: then the work itself has to become less, by a cache, ahead of training,
or by one call per batch, and what workers alone would hide is said. In a trace of a device the low end is
no more than the time that the device was idle for data: the rest of the wait was hidden under work already
queued. A loader that has workers and still lets the step wait may wait for the disk: then nothing is
certain and the low end is 0, except where the workers were sampled. Workers that are busy most of the time
and use little of a CPU wait themselves, and four of them wait side by side. Workers that are started in
every epoch (persistent_workers=False, epochs of a few steps) and have little to do cost their start: the
mean of all steps counts, and at the low end two thirds go, the rest being for the epoch's first batch.
Where workers stay and are at work for less than three quarters of their time, a wait below a quarter of the
step is told for information only: it is the handover, or a CPU that other programs use. So is one without
workers that is shorter than a handover, where the step computes on a CPU.

Source: the threshold of 5% of the step is torch-tb-profiler's for the same advice. 1.3 ms was measured for
a two-tensor batch between processes on two shared cores; a ready batch in the same process takes 0.1 ms.
The quarter: with one worker that was at work two thirds of the time, forward and backward took 24 and 33%
longer on two CPUs of a virtual machine. The two thirds were chosen on programs of the labelled suite that
read less, cache or work per batch; they gained 90 to 110% of the wait. The device's low end was chosen on
one public pair of GPU traces, ResNet-50 with 0 and with 4 workers (45 to 57 ms against 46 ms gained), so
that pair does not prove it. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import mean_step, phase_of_mean_step
from perfkit.rules._step_budget import (
    CRITICAL,
    MAJORITY,
    NEGLIGIBLE,
    Part,
    Whole,
    busiest_device,
    device_part,
    on_device,
    phase_part,
    severity_of,
    whole_of,
    with_beyond,
)
from perfkit.rules.data._loader_workers import (
    HANDOVER_NS,
    MOST_WORKERS,
    hidden_by_workers,
    slowed_by_workers,
    workers_for,
)
from perfkit.run.records import LineRow, Loader, Workers

ID = "input-bound"

#: Workers that were started as often as this are started per epoch.
_STARTS = 3
#: What a ready batch costs in the process that made it (measured, see above): no setting removes it.
_READY_NS = 100_000
#: Workers at work for less than this share of their time prepare batches faster than training takes them: a queue
#: of two batches per worker (torch's prefetch_factor) then runs empty only where samples differ much in their cost.
_KEEPS_UP = 0.75
_HANDOVER = (
    "Workers have time to spare, so more of them gain nothing: leave a CPU free for them, hand over less (smaller "
    "dtypes, fewer tensors), or raise prefetch_factor where samples differ much."
)
_CHEAP = "A batch costs less than handing one over from a worker: only less work per batch could gain something."
#: What goes at least where the work itself becomes less (see above).
_LESS_WORK = 2 / 3
#: Below this many samples of the data phase the line comes from the step for lines, which sees every line. Of 20 a
#: line with half of the time gets a quarter or fewer once in fifty runs; and in a short run on a busy machine the
#: few there are fall on the line that waits, where the interpreter's lock changes hands.
_FEW_SAMPLES = 20
#: Lines with less than this share of the busiest line's samples count only where the step for lines saw them too.
_STRAY = 0.05


def check(measured: Measured) -> Iterator[Finding]:
    """Find the wait for data, the user's function behind it, and what workers would hide of it."""
    whole = whole_of(measured)
    if whole is None:
        return
    loader = _loader(measured)
    at_work = _workers(measured, loader)
    starts = _starts(loader, at_work)
    if starts:
        # Only the first step of an epoch waits for its workers: the typical step knows nothing of it.
        whole = mean_step(measured) or whole
    wait = _wait(measured, whole, of_all=bool(starts))
    if wait is None:
        return
    cost_ns = max(0, wait.ns - _READY_NS)
    if starts and measured.step is not None:
        # Processes that start take a processor and memory from the steps beside them: a median step has none of that.
        cost_ns = max(cost_ns, whole.wall_ns - measured.step.median_ns)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    workers = _advised(measured, at_work)
    low_ns, assumption = _hidden(measured, whole.wall_ns, wait.ns, loader, at_work)
    hidden_ns = None
    if starts:
        low_ns, assumption = (
            round(_LESS_WORK * cost_ns),
            "workers that stay: a third is left for each epoch's first batch",
        )
    elif low_ns < _LESS_WORK * cost_ns and (loader is None or not loader.num_workers):
        hidden_ns = max(0, low_ns)
        low_ns, assumption = round(_LESS_WORK * cost_ns), f"less work; {assumption} hide {ms(hidden_ns)}"
    if (device := busiest_device(measured)) is not None:
        starved_ns = device_part(device.causes.get("data loading", 0), device, whole)
        low_ns = max(0, min(low_ns, starved_ns - HANDOVER_NS))
        assumption += f", no more than device {device.device} was idle for data"
    hottest = _hottest(measured, loader if not starts else None)
    # A batch that costs less than one that comes from a worker: no setting of a loader makes it cheaper.
    cheap = not on_device(measured) and hidden_ns == 0 and wait.ns < HANDOVER_NS
    ready = not starts and (cheap or _ready(at_work)) and cost_ns < CRITICAL * whole.wall_ns
    evidence = _evidence(wait, whole, (min(low_ns, cost_ns), assumption), loader, at_work, hottest)
    yield Finding(
        rule=ID,
        severity="info" if ready else severity_of(cost_ns, whole),
        message=_message(wait.ns, whole, loader, hottest, starts, ready, hidden_ns),
        advice=(_CHEAP if cheap else _HANDOVER) if ready else _advice(loader, workers, hottest, starts),
        confidence="low" if ready else "high" if measured.step is not None else "medium",
        evidence=tuple(evidence),
        file=hottest.file if hottest else None,
        line=hottest.line if hottest else None,
        function=hottest.function if hottest else None,
        cost_ns=cost_ns,
        saving_low_ns=0 if ready else min(low_ns, cost_ns),
        saving_high_ns=with_beyond(cost_ns, measured, whole),
    )


def _evidence(
    wait: Part,
    whole: Whole,
    low: tuple[int, str],
    loader: Loader | None,
    at_work: Workers | None,
    hottest: LineRow | None,
) -> list[Evidence]:
    """The numbers behind the finding; ``low`` is the low end of the gain and what it assumes."""
    evidence = [
        Evidence("waiting for data", round(wait.ns / 1e6, 3), "ms", wait.source),
        Evidence("share of the step", round(100 * wait.ns / whole.wall_ns, 1), "%", whole.source),
        Evidence("low end of the gain", round(low[0] / 1e6, 3), "ms", low[1]),
    ]
    if loader is not None:
        evidence.append(Evidence("num_workers", loader.num_workers, "", f"DataLoader over {loader.dataset}"))
        evidence.append(Evidence("persistent_workers", str(loader.persistent_workers), "", "DataLoader"))
    if at_work is not None:
        source = f"{at_work.samples} samples of stacks in {at_work.processes} worker processes"
        evidence.append(
            Evidence("workers at work", round(100 * at_work.busy_ns / at_work.alive_ns, 1), "% of their time", source)
        )
        if at_work.busy_ns:
            evidence.append(
                Evidence(
                    "of that on a CPU",
                    round(min(100.0, 100 * at_work.cpu_ns / at_work.busy_ns), 1),
                    "%",
                    "processor time of the workers; the rest they wait, for a disk or for a free CPU",
                )
            )
    if hottest is not None and hottest.samples:
        evidence.append(
            Evidence("time in the line", round(hottest.host_ns / 1e6, 3), "ms", f"{hottest.samples} samples of stacks")
        )
    return evidence


def _wait(measured: Measured, whole: Whole, *, of_all: bool) -> Part | None:
    """The wait for data as far as it holds up the step: on a device, no more than the device was idle.

    ``of_all`` takes the mean of all steps instead of the typical one's.
    """
    device = busiest_device(measured)
    waited = phase_part(measured, "data", whole)
    if of_all:
        waited = Part(phase_of_mean_step(measured, "data"), whole.source)
    if device is None:
        return waited
    if waited is None:
        ns = device_part(device.causes.get("data loading", 0), device, whole)
        return Part(ns, f"idle of device {device.device} while the host loaded data")
    idle_ns = device_part(device.idle_ns, device, whole)
    if waited.ns <= idle_ns:
        return waited
    return Part(idle_ns, f"{waited.source}; no more than device {device.device} was idle")


def _loader(measured: Measured) -> Loader | None:
    loaders = measured.rank.loaders if measured.rank is not None else ()
    return next((loader for loader in loaders if loader.role == "train"), None)


def _starts(loader: Loader | None, at_work: Workers | None) -> int:
    """How often the workers of a loader were started, where starting them is what the steps wait for; else 0."""
    if loader is None or at_work is None or not loader.num_workers or loader.persistent_workers:
        return 0
    starts = at_work.processes // loader.num_workers
    return starts if starts >= _STARTS and at_work.busy_ns < MAJORITY * at_work.alive_ns else 0


def _ready(at_work: Workers | None) -> bool:
    """Whether the workers had so little to do that batches were ready: the wait is for a handover, or a free CPU."""
    return at_work is not None and at_work.busy_ns < _KEEPS_UP * at_work.alive_ns


def _waits_inside(at_work: Workers | None) -> bool:
    """Whether the workers are at work most of the time, and most of that wait themselves, for a disk or a network."""
    if at_work is None or not at_work.busy_ns:
        return False
    return at_work.busy_ns >= MAJORITY * at_work.alive_ns and at_work.cpu_ns < MAJORITY * at_work.busy_ns


def _advised(measured: Measured, at_work: Workers | None) -> int:
    """How many workers to try: as many as CPUs are free, and more where they wait and need none."""
    return MOST_WORKERS if _waits_inside(at_work) else workers_for(measured)


def _hidden(
    measured: Measured, wall_ns: int, data_ns: int, loader: Loader | None, at_work: Workers | None
) -> tuple[int, str]:
    """What background workers hide for certain, and the sentence that says under which assumption."""
    if loader is not None and loader.num_workers > 0:
        more = _advised(measured, at_work)
        if _waits_inside(at_work) and more > loader.num_workers:
            # The workers are what the step waits for, and more of them wait side by side.
            step_ns = max(wall_ns - data_ns, round(wall_ns * loader.num_workers / more)) + HANDOVER_NS
            step_ns += slowed_by_workers(measured, wall_ns - data_ns)
            return max(0, wall_ns - step_ns), f"{more} workers that wait side by side, for no CPU"
        return 0, f"{loader.num_workers} workers are there already; whether they wait for CPU or disk is not measured"
    return hidden_by_workers(measured, wall_ns, data_ns)


def _workers(measured: Measured, loader: Loader | None) -> Workers | None:
    """What the workers of a loader did, None where it has none or they were not sampled."""
    if measured.lines is None or loader is None or loader.num_workers == 0:
        return None
    return next((one for one in measured.lines.workers if one.dataset == loader.dataset and one.alive_ns), None)


def _hottest(measured: Measured, loader: Loader | None) -> LineRow | None:
    """The hottest line of the user's function that takes most of the data phase, in the workers where there are some.

    By function first: a function whose time spreads over ten lines costs more than one with one hot line.
    """
    rows = [row for row in measured.lines.rows if row.phase == "data" and row.owner == "user"] if measured.lines else []
    in_workers = [row for row in rows if loader is not None and loader.num_workers and row.worker == loader.dataset]
    rows = in_workers or _without_strays(measured, [row for row in rows if row.worker is None])
    known = measured.source_lines.lines if measured.source_lines is not None else ()
    stacks = {(line.file, line.line): line.self_ns for line in known}
    weights: list[int] = []
    few = sum(row.samples for row in rows) < _FEW_SAMPLES
    if not in_workers:
        rows += _traced(measured, rows)
        weights = [stacks.get((row.file, row.line), 0) for row in rows] if few else []
    if not any(weights):
        weights = [row.host_ns for row in rows]
    total: dict[tuple[str, str], int] = {}
    for row, ns in zip(rows, weights, strict=True):
        total[row.file, row.function] = total.get((row.file, row.function), 0) + ns
    if not total:
        return None
    function = max(total, key=lambda key: total[key])
    # Samples lean to the line of a function that gives the interpreter lock away; stacks do not.
    return max(
        (row for row in rows if (row.file, row.function) == function),
        key=lambda row: (stacks.get((row.file, row.line), 0), row.host_ns),
    )


def _without_strays(measured: Measured, sampled: list[LineRow]) -> list[LineRow]:
    """The lines that belong to the phase: a sample or two are of the line before or behind it."""
    most = max((row.samples for row in sampled), default=0)
    traced = measured.lines.traced if measured.lines is not None else ()
    in_phase = {(line.file, line.line) for line in traced if line.phase == "data"}
    return [row for row in sampled if row.samples >= _STRAY * most or (row.file, row.line) in in_phase]


def _traced(measured: Measured, sampled: list[LineRow]) -> list[LineRow]:
    """The lines of the user's that the step for lines saw in the data phase, and no sample did."""
    seen = {(row.file, row.line) for row in sampled}
    traced = measured.lines.traced if measured.lines is not None else ()
    new = {
        (line.file, line.line): line
        for line in traced
        if line.phase == "data" and line.owner == "user" and (line.file, line.line) not in seen
    }
    return [
        LineRow(
            file=line.file,
            line=line.line,
            function=line.function,
            owner=line.owner,
            phase=line.phase,
            samples=0,
            host_ns=0,
        )
        for line in new.values()
    ]


def _message(
    wait_ns: int,
    whole: Whole,
    loader: Loader | None,
    hottest: LineRow | None,
    starts: int,
    ready: bool,
    hidden_ns: int | None,
) -> str:
    """What is found; ``hidden_ns`` is what workers alone would hide, where that is the lesser part."""
    waits = f"Waiting for data takes {ms(wait_ns)} of the {ms(whole.wall_ns)} {whole.per}"
    if loader is not None and loader.num_workers == 0:
        alone = f"; workers alone would hide {ms(hidden_ns)}" if hidden_ns else ""
        where = hottest.function if hottest else loader.dataset
        return f"{waits}: {where} runs in the training process, num_workers=0{alone}."
    if starts:
        return f"{waits} ({percent(wait_ns, whole.wall_ns)}), most of it for workers that were started {starts} times."
    if loader is not None:
        workers = f"{loader.num_workers} worker{'s' if loader.num_workers > 1 else ''}"
        if ready:
            workers += " that have time to spare"
        return f"{waits} ({percent(wait_ns, whole.wall_ns)}), although batches are prepared by {workers}."
    return f"{waits} ({percent(wait_ns, whole.wall_ns)})."


def _advice(loader: Loader | None, workers: int, hottest: LineRow | None, starts: int) -> str:
    if starts:
        return "Keep the workers over the epochs: DataLoader(..., persistent_workers=True), or make the epochs longer."
    # With workers that were not sampled the line is where the loop waits, not where the work is done.
    waits_there = loader is not None and loader.num_workers > 0 and hottest is not None and hottest.worker is None
    work = f"the work of {hottest.function}" if hottest and not waits_there else "per-sample work"
    if loader is None:
        return (
            f"Prepare batches beside training (DataLoader(..., num_workers={workers}, persistent_workers=True)), "
            f"and do {work} once, ahead of it."
        )
    if loader.num_workers == 0:
        return (
            f"Do {work} once, ahead of training, or beside it: "
            f"DataLoader(..., num_workers={workers}, persistent_workers=True)."
        )
    if loader.num_workers >= workers:
        return f"Make a sample cheaper: do {work} once, ahead of training, or in one call per batch."
    keep = "" if loader.persistent_workers else ", persistent_workers=True"
    return f"Raise num_workers from {loader.num_workers} to {workers}{keep}, and do {work} once, ahead of training."
