"""The ranks that a path holds -> their diagnosis."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import NamedTuple

from perfkit.ranks.clocks import AlignedClocks
from perfkit.ranks.diagnosing import ComparedRanks, RanksDiagnosis, compare_columns
from perfkit.ranks.lateness_map import LatenessMap
from perfkit.ranks.mapping import MappedRanks, Progress, map_ranks
from perfkit.ranks.rank_sources import RankSources
from perfkit.ranks.slowed_gpus import with_slowed_gpus
from perfkit.trace.dcgm import NodeMetrics


class DiagnosedRanks(NamedTuple):
    """A diagnosis, the path of each rank's trace, of those that have one, and the number of ranks without a file.

    The rest is for pages: how late each rank is in each step, and the ranks that were compared, with their clocks.
    """

    diagnosis: RanksDiagnosis
    traces: dict[int, str]
    absent: int
    lateness: LatenessMap | None = None
    compared: MappedRanks | None = None
    clocks: AlignedClocks | None = None


def diagnose_sources(
    sources: RankSources,
    executor: Executor | None = None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    node_metrics: NodeMetrics | None = None,
) -> DiagnosedRanks:
    """Read each rank and compare them; see `perfkit.ranks.mapping.map_ranks` for the arguments.

    The rows of a run have all its steps. Where they cannot tell which rank is late, and a window was recorded on
    several ranks, that decides. ``node_metrics`` is what DCGM observed of the GPUs; without it, what the late ranks
    sampled of theirs is looked at.

    Raises:
        RunError: the executor ended before the work did.
        UsageError: ``node_metrics`` has no GPU of the ranks.
    """
    notes = list(sources.notes)
    if sources.world_size is None and sources.missing:
        notes.append(f"no file was found of {len(sources.missing):,} rank(s), {sources.missing[0]} for one")
    found: ComparedRanks | None = None
    compared: MappedRanks | None = None
    for part in [part for part in (sources.rows, sources.traces) if len(part) > 1] or [sources.rows or sources.traces]:
        mapped = map_ranks(part, executor, resume=resume, progress=progress)
        of_part = compare_columns(mapped, sources.path, (*notes, *mapped.lost))
        if found is None or of_part.diagnosis.outcome != "cannot-tell":
            found, compared = of_part, mapped
        if found.diagnosis.outcome != "cannot-tell":
            break
    assert found is not None, "a path holds one rank at least"
    traces = {trace.rank: trace.path for trace in sources.traces}
    diagnosis = with_slowed_gpus(found.diagnosis, sources, node_metrics)
    return DiagnosedRanks(diagnosis, traces, len(sources.missing), found.lateness, compared, found.clocks)
