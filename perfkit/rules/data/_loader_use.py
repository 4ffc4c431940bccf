"""The DataLoader of the training loop: its settings, how often its workers started, and what they did."""

from __future__ import annotations

from typing import NamedTuple

from perfkit._location import Location
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.measures.results.loop import LoopTime
from perfkit.measures.results.measurements import Measurements
from perfkit.rules._places import is_made_by_trainer, to_edit
from perfkit.rules._settings import first_call, number
from perfkit.run.records import ComparedSamples, DatasetTable, Lines, Loader, Rank

#: Arguments of a Trainer that set up its loader.
_ARGUMENTS = ("dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory")
#: Workers that were started as often as this are started in every epoch.
_MIN_STARTS = 3
#: Several loaders were made where workers were started at least this often per pass over the one that is known.
_REMADE = 2
#: A step that begins a pass of fewer batches may use all of it, as one of a small dataset with accumulation does.
_MIN_UNUSED = 10
#: Workers that are busy for less than this share of their time prepare batches faster than training takes them: a queue
#: of two batches per worker (torch's prefetch_factor) then runs empty only where the cost of samples varies much.
_KEEPS_UP = 0.75


class WorkerUse(NamedTuple):
    """What the workers of the training loop's DataLoader did.

    ``busy`` is the share of their time in which they prepared batches, ``on_cpu`` the share of that in which they used
    a CPU (both 0 to 1), None where they were never busy. ``crowds`` is the share of a step in which training waits for
    a core that they have, at least.
    """

    processes: int
    samples: int
    busy: float
    on_cpu: float | None
    crowds: float = 0.0

    @classmethod
    def from_measurements(cls, found: Measurements) -> WorkerUse | None:
        """As sampled; None where the loader has no workers, or they were not sampled."""
        loader, lines = training_loader(found), found.get(Lines)
        if loader is None or not loader.num_workers or lines is None:
            return None
        own = next((one for one in lines.workers if one.dataset == loader.dataset and one.alive_ns), None)
        if own is None:
            return None
        on_cpu = min(1.0, own.cpu_ns / own.busy_ns) if own.busy_ns else None
        crowds = _crowding(own.cpu_ns / own.alive_ns * loader.num_workers, found)
        return cls(own.processes, own.samples, own.busy_ns / own.alive_ns, on_cpu, crowds)

    @property
    def keep_up(self) -> bool:
        """Whether batches were ready: a wait is then for the handover, or for a free CPU."""
        return self.busy < _KEEPS_UP

    @property
    def wait_inside(self) -> bool:
        """Whether they are busy most of the time, and wait for a disk or a network during most of that."""
        return self.on_cpu is not None and self.busy >= MAJORITY and self.on_cpu < MAJORITY


def _crowding(cores: float, found: Measurements) -> float:
    """The share of a step in which training waits for one of these cores: other programs have what is left at most."""
    rank, step = found.get(Rank), StepBudget.from_measurements(found)
    cpus = number(rank, "cpu_affinity") or number(rank, "cpu_count")
    if rank is None or step is None or cpus is None or not rank.core_wait_share or rank.thread_ns_per_step is None:
        return 0.0
    trains = min(1.0, rank.thread_ns_per_step / step.wall_ns)
    waits = min(rank.core_wait_share, 1 - trains)
    others = max(0.0, cpus - cores - trains)
    return waits * cores / (cores + others) if cores else 0.0


class LoaderUse(NamedTuple):
    """The DataLoader of the training loop.

    ``dataset`` is the type of its dataset, None where no DataLoader was seen. ``starts`` is how often its workers were
    started, 0 where steps do not wait for that. ``restarted`` is whether the steps begin a new pass over it for each
    batch, as ``next(iter(loader))`` does, ``late_in_rhythm`` whether each n-th batch comes late. ``change`` is the line
    that sets it up, ``manager`` the one that makes a manager, whose objects processes share. ``remade`` is whether its
    workers were started more often than it was gone through: others like it were made. ``samples`` are those of later
    epochs that were compared with the first one's, ``once`` whether a line that the wait is for need not run again in
    each epoch, which `input-bound` finds out. ``table`` and ``collate_fn`` are those of `Loader`, ``dataset_at`` is the
    line that gives the loader, or its Trainer, its dataset.
    """

    dataset: str | None = None
    num_workers: int = 0
    persistent_workers: bool = False
    starts: int = 0
    restarted: bool = False
    late_in_rhythm: bool = False
    change: Location | None = None
    manager: Location | None = None
    remade: bool = False
    samples: ComparedSamples | None = None
    once: bool = False
    table: DatasetTable | None = None
    collate_fn: str | None = None
    dataset_at: Location | None = None

    @classmethod
    def from_measurements(cls, found: Measurements) -> LoaderUse:
        """As the run recorded it."""
        loader, workers = training_loader(found), WorkerUse.from_measurements(found)
        if loader is None:
            return cls()
        loop = found.get(LoopTime)
        rare = [part for part in (loop.rare if loop is not None else ()) if part.phase == "data"]
        # In each pass it is the first batch that is late, or they would keep up if they were there.
        first, late = any(part.every == loader.batches for part in rare), bool(rare)
        starts = 0
        if workers is not None and not loader.persistent_workers and (first or workers.busy < MAJORITY):
            starts = workers.processes // loader.num_workers
        starts = starts if starts >= _MIN_STARTS else 0
        change = to_edit(found.get(Rank), loader.created_at, *_ARGUMENTS)
        rank = found.get(Rank)
        restarted, manager = _restarted(loader, rank), first_call(rank, "Manager") if rank is not None else None
        return cls(
            loader.dataset,
            loader.num_workers,
            loader.persistent_workers,
            starts,
            restarted,
            bool(late),
            change,
            manager,
            loader.iterators is not None and starts >= _REMADE * max(1, loader.iterators),
            loader.compared_samples,
            table=loader.table,
            collate_fn=loader.collate_fn,
            dataset_at=_dataset_at(loader, rank) or change,
        )


def _dataset_at(loader: Loader, rank: Rank | None) -> Location | None:
    """The line of the Trainer's argument, or that makes the Trainer; None where no Trainer makes the loader."""
    if rank is None or not is_made_by_trainer(loader.created_at):
        return None
    return first_call(rank, "train_dataset", "Trainer")


def _restarted(loader: Loader, rank: Rank | None) -> bool:
    """Whether most steps begin a new pass, of which they use little."""
    if rank is None or loader.iterators is None or loader.batches is None:
        return False
    return loader.batches >= _MIN_UNUSED and loader.iterators > max(_MIN_STARTS, MAJORITY * rank.steps)


def training_loader(found: Measurements) -> Loader | None:
    """The DataLoader that training reads from; None where none was recorded.

    Of several the first one of which most steps begin a new pass; else the first.
    """
    rank = found.get(Rank)
    loaders = [loader for loader in (rank.loaders if rank is not None else ()) if loader.role == "train"]
    return next((loader for loader in loaders if _restarted(loader, rank)), next(iter(loaders), None))
