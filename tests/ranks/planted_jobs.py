"""Jobs of many ranks with a planted straggler, or none: what each rank would have recorded, and what is true of it.

Ranks compute by themselves and meet in collectives, which end on all ranks of a group together. Nothing here knows how
stragglers are looked for. The noise was measured:

- `QUIET_HOST` and `BUSY_HOST`: forward, backward and optimizer over their running median of 51 steps, quantiles of
  single CPU trainings that perfkit recorded on two cores (median of ten programs of 3.5 and 8.7 ms a step, of six of
  17 ms); successive steps correlate by 0.1 in rank.
- `DEVICE`: kernel time of five successive steps of an A100 over their median (HolisticTraceAnalysis'
  trace_diff/control).
- Ends of a collective are 6 µs apart over eight ranks of one host; transfers of equal size vary by a tenth (its
  all-reduces of 87 to 201 µs).

What was not measured, and chosen: lasting differences of equal machines (0.7 %), of hosts (0.3 %), the common variation
of steps, lengths of sequences (lognormal, a third), clocks (up to an hour apart, drifting by up to 50 ppm).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfkit.ranks.rank_columns import RankColumns

MS = 1e6
QUANTILES = (0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1)
QUIET_HOST = (0.922, 0.928, 0.944, 0.969, 0.98, 0.989, 1.0, 1.019, 1.063, 1.138, 1.623, 1.804, 2.164, 2.464)
BUSY_HOST = (0.796, 0.799, 0.819, 0.881, 0.914, 0.948, 1.0, 1.053, 1.124, 1.227, 1.453, 1.532, 1.578, 1.592)
DEVICE = (0.998, 0.999, 1.0, 1.007, 1.026)

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "logging", "checkpoint", "other")
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, LOGGING, CHECKPOINT, OTHER = range(8)
#: Kernel classes, their share of computing and number per step.
CLASSES = ("matmul", "attention", "elementwise", "reduction", "optimizer")
SHARES = np.array([0.55, 0.2, 0.12, 0.08, 0.05])
COUNTS = np.array([220, 48, 600, 150, 20])

#: Layouts: what is recorded, and where ranks meet. "ddp": buckets that travel while the backward computes. "blocking":
#: collectives of all ranks that computing waits for. "tensor": such within each host, and one of all ranks at the end.
LAYOUTS = ("rows ddp", "rows blocking", "trace ddp", "trace blocking", "trace tensor")
CAUSES = ("data", "work", "sequences", "host", "kernels", "last stage", "slow host", "checkpoint", "gc", "gc of all",
          "link", "once")  # fmt: skip
#: What is planted makes the job at least so much longer.
MIN_SLOWDOWN = 1.05
#: What rows show and traces do not.
ROWS_ONLY = ("work", "sequences", "checkpoint", "gc", "gc of all")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job before it runs; ``late`` are the ranks that are planted late, None: it is another one each time."""

    seed: int
    layout: str
    ranks: int
    per_host: int
    steps: int
    step_ns: float
    noise: str
    cause: str | None
    late: tuple[int, ...] | None = ()
    strength: float = 0.0
    #: The share of steps in which it is late.
    share: float = 1.0

    @property
    def from_rows(self) -> bool:
        return self.layout.startswith("rows")


@dataclass(eq=False)
class Recorded:
    """What a simulated job did, in ns of true time; [ranks, steps] each, collectives [ranks, steps, n]."""

    phases: np.ndarray
    start: np.ndarray
    wall: np.ndarray
    waited: np.ndarray
    gc: np.ndarray
    work: np.ndarray
    kernels: np.ndarray
    counts: np.ndarray
    begins: list[np.ndarray] = field(default_factory=list)
    ends: list[np.ndarray] = field(default_factory=list)
    busy: list[np.ndarray] = field(default_factory=list)
    groups: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class PlantedJob:
    """Columns of the ranks, and the truth: by how much longer the job's steps are than without what was planted."""

    plan: Plan
    ranks: list[RankColumns]
    slowdown: float


def plan_job(seed: int, healthy: bool = False) -> Plan:
    """The plan of a seed; causes and layouts come in turns, all else by chance."""
    draw = np.random.default_rng(seed + (1_000_003 if healthy else 0))
    cause = None if healthy else CAUSES[(seed // 2) % len(CAUSES)]
    layouts = [one for one in LAYOUTS if one.startswith("rows")] if cause in ROWS_ONLY else list(LAYOUTS)
    if cause == "link":
        layouts = ["trace tensor"]
    layout = layouts[int(draw.integers(len(layouts)))]
    ranks = int(draw.choice([2, 4, 8, 16, 32, 64, 128]))
    if cause in ("link", "slow host", "last stage") or layout == "trace tensor":
        ranks = max(ranks, 32)
    from_rows = layout.startswith("rows")
    plan = Plan(
        seed=seed,
        layout=layout,
        ranks=ranks,
        per_host=min(8, ranks) if ranks > 8 else int(draw.choice([ranks, max(1, ranks // 2)])),
        steps=int(draw.integers(60, 300)) if from_rows else int(draw.integers(8, 24)),
        step_ns=float(np.exp(draw.uniform(np.log(20), np.log(800)))) * MS,
        noise=str(draw.choice(["quiet", "busy"])) if from_rows and draw.random() < 0.5 else "device",
        cause=cause,
    )
    if cause is None:
        return plan
    return replace(plan, **_effect(plan, cause, draw))


def _effect(plan: Plan, cause: str, draw: np.random.Generator) -> dict[str, Any]:
    strength = float(np.exp(draw.uniform(np.log(0.08), np.log(0.8))))
    one: tuple[int, ...] | None = (int(draw.integers(plan.ranks)),)
    share = 1.0
    if cause in ("data", "host") and plan.from_rows and draw.random() < 0.5:
        share = float(draw.uniform(0.1, 0.4))
        strength = max(strength, 0.08 / share)
    if cause in ("sequences", "gc of all"):
        one = None
    if cause == "last stage":
        size = plan.ranks // int(draw.choice([2, 4]))
        one = tuple(range(plan.ranks - size, plan.ranks))
    if cause in ("slow host", "link"):
        host = int(draw.integers(plan.ranks // plan.per_host))
        one = tuple(range(host * plan.per_host, (host + 1) * plan.per_host))
    if cause in ("checkpoint", "gc", "gc of all"):
        share = float(draw.uniform(0.04, 0.2))
        strength = float(draw.uniform(0.08, 0.5)) / share
        if cause == "gc of all":
            share /= plan.ranks  # of each
    if cause == "once":
        share = 0.0
        strength = float(draw.uniform(0.08, 0.5)) * plan.steps + 2
    return {"late": one, "strength": strength, "share": share}


def _noise(plan: Plan, draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if plan.noise == "device":
        return draw.choice(DEVICE, shape) * draw.normal(1, 0.002, shape)
    table = QUIET_HOST if plan.noise == "quiet" else BUSY_HOST
    return np.interp(draw.random(shape), QUANTILES, table)


def simulate(plan: Plan, planted: bool) -> Recorded:
    """Run the job, with what is planted or without it: all else is drawn the same."""
    draw = np.random.default_rng(plan.seed * 7 + 1)
    shape = (plan.ranks, plan.steps)
    hosts = np.arange(plan.ranks) // plan.per_host
    machine = draw.normal(1, 0.007, plan.ranks) * draw.normal(1, 0.003, plan.ranks)[hosts]
    common = np.exp(draw.normal(0, draw.choice([0, 0.01, 0.05]), plan.steps))
    computing = machine[:, None] * common * _noise(plan, draw, shape) * plan.step_ns
    length = draw.lognormal(0, 0.33, shape)
    work = np.full(shape, 4096.0) * draw.choice([1.0, 0.0], p=[0.6, 0.4])  # 0: not recorded
    host_noise = np.interp(draw.random((*shape, 4)), QUANTILES, BUSY_HOST)
    phases = np.zeros((*shape, len(PHASES)))
    for phase, share in ((FORWARD, 0.3), (BACKWARD, 0.55), (OPTIMIZER, 0.05)):
        phases[..., phase] = share * computing
    for column, (phase, share) in enumerate(((DATA, 0.03), (TRANSFER, 0.01), (LOGGING, 0.01), (OTHER, 0.03))):
        phases[..., phase] = share * plan.step_ns * host_noise[..., column]
    every = int(draw.integers(10, 40))
    phases[:, ::every, CHECKPOINT] = 0.5 * plan.step_ns  # of all ranks together
    gc = np.where(draw.random(shape) < 0.02, 0.002 * plan.step_ns, 0)
    counts = np.tile(COUNTS, (*shape, 1)).astype(float)
    slower = np.ones((*shape, len(CLASSES)))
    hit = draw.random(shape) < plan.share
    extra = plan.strength * plan.step_ns * draw.lognormal(0, 0.2, shape)
    when, which, chosen = int(draw.integers(2, plan.steps - 1)), int(draw.choice([DATA, OTHER])), draw.random()
    late = np.zeros(shape, bool)
    if plan.late is None:
        late[:] = True
    else:
        late[list(plan.late)] = True
    if plan.cause in ("sequences", "work"):
        work = np.full(shape, 4096.0)
        if plan.cause == "sequences":
            work = work * (length if planted else np.broadcast_to(length.mean(axis=0), shape))
        elif planted:
            work[late] *= 1 + plan.strength
        phases[..., [FORWARD, BACKWARD]] *= (work / 4096)[..., None]
    elif planted and plan.cause in ("data", "host", "checkpoint", "gc", "gc of all"):
        phase = {"data": DATA, "host": OTHER, "checkpoint": CHECKPOINT}.get(plan.cause, FORWARD)
        added = np.where(late & hit, extra, 0)
        phases[..., phase] += added
        if phase == FORWARD:
            gc += added
    elif planted and plan.cause == "once":
        phases[plan.late, when, which] += plan.strength * plan.step_ns
    elif planted and plan.cause in ("kernels", "slow host"):
        one = int(chosen * 4) if plan.cause == "kernels" and not plan.from_rows else slice(None)
        slower[late, one] += plan.strength / (SHARES[one] if isinstance(one, int) else 1)
        phases[late, FORWARD : OPTIMIZER + 1] *= 1 + plan.strength
    elif planted and plan.cause == "last stage":
        counts[late] = np.rint(COUNTS * (1 + plan.strength))
        slower[late] += plan.strength
        phases[late, FORWARD : OPTIMIZER + 1] *= 1 + plan.strength
    device = SHARES * slower * draw.normal(1, 0.01, (*shape, len(CLASSES)))
    kernels = device / device.sum(axis=-1, keepdims=True) * phases[..., FORWARD : OPTIMIZER + 1].sum(-1, keepdims=True)
    gc_inside = gc if plan.cause in ("gc", "gc of all") and planted else np.zeros(shape)
    recorded = Recorded(phases, np.zeros(shape), np.zeros(shape), np.zeros(shape), gc, work, kernels, counts)
    recorded.kernels *= (1 - gc_inside / np.maximum(phases[..., FORWARD : OPTIMIZER + 1].sum(-1), 1))[..., None]
    _run(plan, recorded, hosts, draw, planted)
    return recorded


def _run(plan: Plan, done: Recorded, hosts: np.ndarray, draw: np.random.Generator, planted: bool) -> None:
    """Let the ranks meet: sets starts, walls, waiting and collectives, and adds waiting to the phases it lies in."""
    ranks, meets = plan.ranks, 4
    transfer = 0.02 * plan.step_ns * np.exp(draw.normal(0, 0.1, (plan.steps, 2 * meets + 1, ranks)))
    everybody = np.zeros(ranks, np.int64)
    now = draw.uniform(0, 0.01, ranks) * plan.step_ns
    slow_link = np.ones(ranks)
    if planted and plan.cause == "link":
        slow_link[list(plan.late or ())] += plan.strength / (0.02 * 2 * meets)
    layout = plan.layout.split()[1]
    for step in range(plan.steps):
        done.start[:, step] = now
        phase = done.phases[:, step]
        now = now + phase[:, DATA] + phase[:, TRANSFER]
        number = 0

        def meet(arrived: np.ndarray, group: np.ndarray, step: int = step) -> np.ndarray:
            nonlocal number
            last = np.zeros(int(group.max()) + 1)
            np.maximum.at(last, group, arrived)
            takes = transfer[step, number, : last.size] * (slow_link[:: plan.per_host] if last.size > 1 else 1)
            ends = last[group] + takes[group]
            done.begins.append(arrived)
            done.ends.append(ends)
            done.groups.append(group)
            number += 1
            return ends

        if layout == "ddp":
            now = now + phase[:, FORWARD]
            free = now
            for _ in range(meets):
                now = now + phase[:, BACKWARD] / meets
                free = meet(np.maximum(now, free), everybody)
            for begins, ends in zip(done.begins[-meets:], done.ends[-meets:], strict=True):
                done.busy.append(np.maximum(np.minimum(ends, now) - begins, 0))  # the backward ends now
            waited = np.maximum(free - now, 0)
            now, phase[:, BACKWARD] = now + waited, phase[:, BACKWARD] + waited
            done.waited[:, step] = waited
        else:
            group = hosts if layout == "tensor" else everybody
            for part in (FORWARD, BACKWARD):
                blocked = np.zeros(ranks)
                for _ in range(meets):
                    arrived = now + phase[:, part] / meets
                    now = meet(arrived, group)
                    blocked += now - arrived
                if part == BACKWARD and layout == "tensor":
                    ends = meet(now, everybody)
                    blocked, now = blocked + ends - now, ends
                phase[:, part] += blocked
                done.waited[:, step] += blocked
        now = now + phase[:, [OPTIMIZER, LOGGING, CHECKPOINT, OTHER]].sum(axis=1)
        done.wall[:, step] = now - done.start[:, step]


def record(plan: Plan, done: Recorded) -> list[RankColumns]:
    """What each rank would have kept of it, on its own clock."""
    draw = np.random.default_rng(plan.seed * 7 + 2)
    hosts = np.arange(plan.ranks) // plan.per_host
    offset = draw.uniform(-3600e9, 3600e9, int(hosts.max()) + 1)[hosts] + 1.76e18
    drift = draw.uniform(-50e-6, 50e-6, int(hosts.max()) + 1)[hosts]
    in_us, numbered = bool(draw.random() < 0.5), bool(draw.random() < 0.7)
    first = int(draw.integers(0, 5000))
    number = first + np.arange(plan.steps)
    per_step = len(done.begins) // plan.steps

    def on_clock(rank: int, times: np.ndarray) -> np.ndarray:
        own = np.rint(times * (1 + drift[rank])).astype(np.int64) + int(offset[rank])
        return own // 1000 * 1000 if in_us and not plan.from_rows else own

    begins, ends = np.array(done.begins), np.array(done.ends) + draw.normal(0, 6e3, (len(done.ends), plan.ranks))
    busy = np.array(done.busy) if done.busy else np.zeros(begins.shape)  # elsewhere computing waits for them
    unknown = np.full(plan.steps, -1)
    columns = []
    for rank in range(plan.ranks):
        rows = plan.from_rows
        groups = [f"tp{one[rank]}" if one.max() else "world" for one in done.groups[:per_step]] * plan.steps
        names = tuple(dict.fromkeys(groups))
        begin, end = on_clock(rank, begins[:, rank]), on_clock(rank, np.maximum(ends[:, rank], begins[:, rank]))
        step = np.repeat(number, per_step)
        phases = np.rint(done.phases[rank]).astype(np.int64)
        kept = [DATA, OPTIMIZER]
        columns.append(
            RankColumns(
                rank=rank,
                world_size=plan.ranks,
                host=f"node{hosts[rank]}",
                launch="job",
                source=f"rank-{rank}",
                origin="rows" if rows else "trace",
                digest="",
                lost=(),
                step_number=number,
                step_start_ns=on_clock(rank, done.start[rank]),
                step_wall_ns=np.rint(done.wall[rank]).astype(np.int64),
                phase_names=PHASES if rows else tuple(PHASES[one] for one in kept),
                phases_ns=phases if rows else phases[:, kept],
                gc_ns=np.rint(done.gc[rank]).astype(np.int64) if rows else unknown,
                waited_ns=np.rint(done.waited[rank]).astype(np.int64) if rows else unknown,
                work=np.where(done.work[rank] > 0, np.rint(done.work[rank]), -1).astype(np.int64) if rows else unknown,
                group_names=() if rows else names,
                kind_names=() if rows else ("allreduce",),
                collective_group=_kept(rows, np.array([names.index(one) for one in groups], np.int32)),
                collective_kind=_kept(rows, np.zeros(step.size, np.int32)),
                collective_sequence=_kept(rows, np.arange(step.size) if numbered else np.full(step.size, -1)),
                collective_bytes=_kept(rows, np.full(step.size, 25 * 2**20)),
                collective_step=_kept(rows, step),
                collective_arrive_ns=_kept(rows, begin - 5_000),
                collective_start_ns=_kept(rows, begin),
                collective_end_ns=_kept(rows, end),
                collective_busy_ns=_kept(rows, np.rint(busy[:, rank]).astype(np.int64)),
                kernel_classes=() if rows else CLASSES,
                kernel_ns=np.zeros((plan.steps, 0), np.int64) if rows else np.rint(done.kernels[rank]).astype(np.int64),
                kernel_count=np.zeros((plan.steps, 0), np.int64) if rows else done.counts[rank].astype(np.int64),
            )
        )
    return columns


def _kept(rows: bool, column: np.ndarray) -> np.ndarray:
    return column[:0] if rows else column


def planted_job(seed: int, healthy: bool = False) -> PlantedJob:
    """The job of a seed; what is planted costs enough to be found."""
    plan = plan_job(seed, healthy)
    job = run_plan(plan)
    while plan.cause is not None and job.slowdown < MIN_SLOWDOWN:  # the noise of the others hides it
        plan = replace(plan, strength=1.5 * plan.strength)
        job = run_plan(plan)
    return job


def run_plan(plan: Plan) -> PlantedJob:
    """The job of a plan: run with what is planted, and without it."""
    done = simulate(plan, planted=True)
    without = simulate(plan, planted=False) if plan.cause is not None else done
    return PlantedJob(plan, record(plan, done), float(_length(done) / _length(without)))


def _length(done: Recorded) -> float:
    """How long the job took from the second step on, on its last rank: traces compare from there."""
    return float((done.start[:, -1] + done.wall[:, -1] - done.start[:, 1]).max())


def damaged(job: PlantedJob, share: float = 0.2) -> PlantedJob:
    """The job with a share of its ranks missing, cut, or without what older versions do not record."""
    draw = np.random.default_rng(job.plan.seed * 7 + 3)
    hit = set(draw.permutation(job.plan.ranks)[: round(share * job.plan.ranks)].tolist())
    kept = []
    for one in job.ranks:
        what = draw.choice(["missing", "cut", "older"])
        if one.rank not in hit:
            kept.append(one)
        elif what == "cut":
            kept.append(_cut(one, float(draw.uniform(0.2, 0.9))))
        elif what == "older":
            gone = np.full(len(one), -1)
            kept.append(replace(one, gc_ns=gone, work=gone, host="" if draw.random() < 0.3 else one.host))
    return replace(job, ranks=kept)


def _cut(one: RankColumns, share: float) -> RankColumns:
    steps, rows = int(len(one) * share), int(one.collective_step.size * share)
    names = [name for name in vars(one) if isinstance(vars(one)[name], np.ndarray)]
    ends = {name: rows if name.startswith("collective_") else steps for name in names}
    return replace(one, **{name: vars(one)[name][: ends[name]] for name in names})
