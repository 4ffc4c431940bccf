"""Each rank becomes its columns, on any `concurrent.futures.Executor`; they are kept by the digest of their files.

A task reads one rank where it runs and hands back less than 100 kB. A rank that cannot be read, or whose worker dies,
is left out with a sentence; the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from pathlib import Path

from perfkit._env import cores
from perfkit.errors import PerfkitError, RunError
from perfkit.ranks._agreement import RankFacts, of_one_run
from perfkit.ranks._kept_ranks import KeptRanks
from perfkit.ranks.executors import Processes
from perfkit.ranks.rank_columns import RankColumns
from perfkit.ranks.rank_sources import RankSource
from perfkit.ranks.row_columns import columns_of_rows
from perfkit.ranks.trace_columns import columns_of_trace
from perfkit.run.reading import RankFolder
from perfkit.run.remote import fetched, fetched_folder, is_url
from perfkit.trace import read_trace

#: Called with (ranks done, ranks in all).
Progress = Callable[[int, int], None]

#: Tasks that are handed to an executor and not done: enough for the largest cluster, and few to take back.
MAX_WAITING = 2_000
#: Ranks by their rows that a process of its own pays for: it starts in 1.3 s, rows of a rank take 0.02 to 0.35 s.
_ROWS_EACH = 16
#: Seconds for the tasks of an executor that has ended to end as well.
_END_S = 10.0
#: The executor was shut down, or no process can be started: AssertionError in a worker of a DataLoader or a pool.
_CANNOT_START = (BrokenExecutor, RuntimeError, OSError, AssertionError)


class MappedRanks:
    """The columns of ranks that belong together, in order of their ranks; each is read when it is asked for.

    Of ten thousand ranks only one is in memory at a time. ``lost`` has a sentence for those that were left out.
    """

    def __init__(self, read: Sequence[Callable[[], RankColumns]], facts: Sequence[RankFacts], lost: tuple[str, ...]):
        self._read = read
        self.facts = tuple(facts)
        self.lost = lost

    def __len__(self) -> int:
        return len(self._read)

    def __iter__(self) -> Iterator[RankColumns]:
        """The columns of each rank."""
        for read in self._read:
            yield read()

    def of_ranks(self, ranks: Sequence[int]) -> dict[int, RankColumns]:
        """The columns of those of these ranks that are there."""
        positions = {one.rank: at for at, one in enumerate(self.facts)}
        return {rank: self._read[positions[rank]]() for rank in ranks if rank in positions}


def map_rank(source: RankSource) -> RankColumns:
    """The columns of one rank.

    Raises:
        PerfkitError: its files are missing, or cannot be read.
    """
    if source.origin == "rows":
        with _folder(source) as folder:
            return columns_of_rows(
                folder,
                world_size=source.world_size,
                launch=source.launch,
                source=source.path,
                digest=source.digest,
            )
    with _file(source.path) as file:
        trace = read_trace(file, processes=1)
        rank = source.rank if trace.metadata.rank is None else trace.metadata.rank
        return columns_of_trace(
            trace, rank, host=source.host, launch=source.launch, source=source.path, digest=source.digest
        )


@contextmanager
def _folder(source: RankSource) -> Iterator[RankFolder]:
    if not is_url(source.path):
        yield RankFolder(Path(source.path), source.rank)
        return
    with fetched_folder(source.files, f"rank-{source.rank}") as folder:
        yield RankFolder(folder, source.rank)


@contextmanager
def _file(path: str) -> Iterator[Path]:
    if not is_url(path):
        yield Path(path)
        return
    with fetched(path) as copy:
        yield copy


def _task(source: RankSource) -> bytes | str:
    """A rank's columns as bytes, or why there are none: not every executor brings an error back as it was."""
    try:
        return map_rank(source).to_bytes()
    except PerfkitError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - one rank's file must not end the work of the others
        return f"{type(error).__name__}: {error}"


def map_ranks(
    sources: Sequence[RankSource],
    executor: Executor | None = None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> MappedRanks:
    """Make the columns of each rank, and choose those that belong together.

    Args:
        sources: The ranks, of `perfkit.ranks.rank_sources.find_ranks`.
        executor: Where to make them; the caller shuts it down. Default: processes, at most one for each core.
        resume: Take those that an earlier call made of the same files; they are kept in the user's cache folder.
        progress: Called after each rank.

    Raises:
        RunError: the executor ended before the work did.
    """
    mapping = _Mapping(sources, progress)
    waiting = [source for source in sources if not (resume and mapping.take_kept(source))]
    rows = sum(source.origin == "rows" for source in waiting)
    count = min(cores(), len(waiting) - rows + rows // _ROWS_EACH)
    if executor is None and count > 1:
        with Processes(count) as processes:
            mapping.run(waiting, processes)
    elif executor is None:
        mapping.run_here(waiting)
    else:
        mapping.run(waiting, executor)
    return mapping.result()


class _Mapping:
    """What was made so far."""

    def __init__(self, sources: Sequence[RankSource], progress: Progress | None) -> None:
        self._sources = sources
        self._progress = progress
        self._kept = KeptRanks(sources)
        self._made: dict[RankSource, tuple[RankFacts, Callable[[], RankColumns]]] = {}
        self._lost: dict[RankSource, str] = {}

    def take_kept(self, source: RankSource) -> bool:
        """Take what an earlier call made of this rank; False: nothing, or it is damaged."""
        data = self._kept.read(source)
        if data is None:
            return False
        try:
            self._add(source, data)
        except RunError:
            return False
        return True

    def run_here(self, sources: Iterable[RankSource]) -> None:
        """Make them in this process."""
        for source in sources:
            self._finish(source, _task(source))

    def run(self, sources: Sequence[RankSource], executor: Executor) -> None:
        """Make them on an executor.

        Where it is of processes and one of them dies, the ranks that it may have had are made once more, each alone,
        and the others in new processes.
        """
        left = deque(sources)
        suspects = self._run_until_broken(left, executor)
        if suspects is None:
            return
        if not isinstance(executor, Processes):
            done = len(self._made) + len(self._lost)
            raise RunError(
                f"the executor ended after {done} of {len(self._sources)} ranks: start it again and resume (--resume, "
                "or resume=True), which takes what was made"
            )
        if not _can_start():
            self.run_here([*suspects, *left])
            return
        for source in suspects:
            with Processes(1) as alone:
                if self._run_until_broken(deque([source]), alone) is not None:
                    self._finish(source, "its worker died, and once more when it was alone: is there memory for it?")
        if left:
            with Processes(executor.count) as others:
                self.run([*left], others)

    def _run_until_broken(self, left: deque[RankSource], executor: Executor) -> list[RankSource] | None:
        """Make what is left until the executor ends: the ranks that were on it then; None where it did not end."""
        # All tasks of a pool whose worker dies are lost.
        most = 2 * executor.count if isinstance(executor, Processes) else MAX_WAITING
        running: dict[Future[bytes | str], RankSource] = {}
        broken = False
        try:
            while running or (left and not broken):
                while left and not broken and len(running) < most:
                    try:
                        running[executor.submit(_task, left[0])] = left[0]
                        left.popleft()
                    except _CANNOT_START:
                        broken = True
                if not running:
                    break
                if lost := self._finish_done(running):
                    # The others come to the same end soon; those that were done are taken first.
                    wait(running, timeout=_END_S)
                    return [*lost, *self._finish_done(running), *running.values()]
        finally:
            for future in running:
                future.cancel()
        return [] if broken else None

    def _finish_done(self, running: dict[Future[bytes | str], RankSource]) -> list[RankSource]:
        """Wait for one rank at least, and take those that are done; the ranks whose executor ended."""
        ended = []
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            source = running.pop(future)
            try:
                self._finish(source, future.result())
            except (BrokenExecutor, CancelledError):
                ended.append(source)
            except Exception as error:  # noqa: BLE001 - each engine has its own for a worker that died
                self._finish(source, f"its worker failed: {type(error).__name__}: {error}")
        return ended

    def _finish(self, source: RankSource, result: bytes | str) -> None:
        if isinstance(result, str):
            self._lost[source] = result
        else:
            try:
                self._add(source, result)
            except RunError as error:  # of a worker with another version of perfkit
                self._lost[source] = str(error)
        if self._progress is not None:
            self._progress(len(self._made) + len(self._lost), len(self._sources))

    def _add(self, source: RankSource, data: bytes) -> None:
        columns = RankColumns.from_bytes(data)
        first, last = (int(columns.step_number[at]) if len(columns) else None for at in (0, -1))
        facts = RankFacts(columns.rank, columns.source, columns.launch, columns.world_size, first, last)
        in_memory = None if self._kept.write(source, data) else data

        def read() -> RankColumns:
            return RankColumns.from_bytes(in_memory if in_memory is not None else self._kept.read(source) or b"")

        self._made[source] = facts, read

    def result(self) -> MappedRanks:
        """All that were made, in order of their ranks, and why the others were not."""
        made = [self._made[source] for source in self._sources if source in self._made]
        made.sort(key=lambda one: one[0].rank)
        together, notes = of_one_run([facts for facts, _ in made])
        lost = [
            f"rank {source.rank} was left out: {self._lost[source]}" for source in self._sources if source in self._lost
        ]
        return MappedRanks([made[at][1] for at in together], [made[at][0] for at in together], (*lost, *notes))


def _can_start() -> bool:
    """Whether a process can be started at all, and be asked something."""
    try:
        with Processes(1) as one:
            return bool(one.submit(int).result() == 0)
    except _CANNOT_START:
        return False
