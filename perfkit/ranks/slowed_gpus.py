"""Whether the GPU of a late rank is what makes it late: lowered clocks, another process on it, or a slower clock.

The GPUs are those that DCGM observed (`perfkit.trace.dcgm`), or the samples that the ranks of a run took of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import msgspec

from perfkit.errors import RunError
from perfkit.measures.ranks.gpu_slowdown import gpu_problems
from perfkit.measures.ranks.observed_gpus import ObservedGpus, RankPlace, errors_of
from perfkit.ranks.diagnosing import RanksDiagnosis
from perfkit.ranks.late_causes import Cause
from perfkit.ranks.late_ranks import LateFinding
from perfkit.ranks.rank_sources import RankSource, RankSources
from perfkit.run.reading import RankFolder
from perfkit.run.records import NodeHealth, Rank
from perfkit.run.remote import is_url
from perfkit.trace.dcgm import NodeMetrics

#: Causes that a slow GPU may be behind.
_OF_DEVICE: tuple[Cause, ...] = ("kernels", "computing", "unknown")
#: Late ranks of a finding that are looked at, and other ranks whose clocks are compared with theirs.
_LOOKED_AT, _COMPARED = 8, 64
#: A clock below this part of the other GPUs' (chosen): those of equal GPUs differ by some percent with heat and power.
_SLOWER = 0.9

HealthOf = Callable[[int], NodeHealth | None]


def with_slowed_gpus(diagnosis: RanksDiagnosis, sources: RankSources, metrics: NodeMetrics | None) -> RanksDiagnosis:
    """The diagnosis, with what slows the GPUs of late ranks in its findings.

    Raises:
        UsageError: ``metrics`` has no GPU of the ranks.
    """
    rows = {source.rank: source for source in sources.rows if not is_url(source.path)}
    observed = None
    if metrics is not None:
        places = [_place(one, rows.get(one.rank)) for one in sources.rows or sources.traces]
        observed = ObservedGpus(metrics, places)

    def health_of(rank: int) -> NodeHealth | None:
        folder = RankFolder(Path(rows[rank].path), rank) if rank in rows else None
        record = _record(folder) if folder is not None else None
        if observed is None:
            return record.node if record is not None else None
        if record is not None and folder is not None:
            return observed.health_of(record, folder.steps)
        gpu = observed.gpu_of(rank)
        return gpu.health() if gpu is not None else None

    each = [one.rank for one in diagnosis.ranks]
    findings = tuple(_with_gpu(finding, each, health_of) for finding in diagnosis.findings)
    missing = list(diagnosis.missing)
    if observed is not None:
        missing += dict.fromkeys(observed.notes)
        late = [gpu for one in _late(findings) if (gpu := observed.gpu_of(one)) is not None]
        missing += [sentence for gpu in late for sentence in errors_of(gpu)]
    return msgspec.structs.replace(diagnosis, findings=findings, missing=tuple(missing))


def _place(source: RankSource, rows: RankSource | None) -> RankPlace:
    record = _record(RankFolder(Path(rows.path), rows.rank)) if rows is not None else None
    return RankPlace.of_record(record) if record is not None else RankPlace(source.rank, source.host)


def _record(folder: RankFolder) -> Rank | None:
    try:
        return folder.rank
    except RunError:  # of a newer perfkit: the rank was left out, with a sentence
        return None


def _late(findings: Iterable[LateFinding]) -> list[int]:
    return [rank for finding in findings for rank in finding.ranks[:_LOOKED_AT]]


def _with_gpu(finding: LateFinding, ranks: list[int], health_of: HealthOf) -> LateFinding:
    if finding.cause not in _OF_DEVICE:
        return finding
    late = {rank: node for rank in finding.ranks[:_LOOKED_AT] if (node := health_of(rank)) is not None and node.taken}
    for rank, node in late.items():
        for problem in gpu_problems(node):
            return msgspec.structs.replace(
                finding, gpu=f"the GPU of rank {rank} {problem.message}. {problem.advice.partition(';')[0].rstrip('.')}"
            )
    usual = _usual_clock([rank for rank in ranks if rank not in finding.ranks], health_of) if late else None
    for rank, node in late.items():
        clock = node.sm_mhz.median if node.sm_mhz is not None else None
        if usual is not None and clock is not None and clock < _SLOWER * usual:
            heat = f" at {node.temperature_c.median:.0f} °C" if node.temperature_c is not None else ""
            return msgspec.structs.replace(
                finding,
                gpu=f"the GPU of rank {rank} runs at {clock:.0f} MHz{heat}, those of the other ranks at {usual:.0f} "
                "MHz (medians). Find out why with nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK on its host",
            )
    return finding


def _usual_clock(others: list[int], health_of: HealthOf) -> float | None:
    """The median clock of the other ranks' GPUs; None where it is not known."""
    some = others[:: max(1, len(others) // _COMPARED)][:_COMPARED]
    nodes = [node for rank in some if (node := health_of(rank)) is not None]
    clocks = [node.sm_mhz.median for node in nodes if node.sm_mhz is not None]
    return median(clocks) if clocks else None
