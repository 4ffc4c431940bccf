"""Kernels that follow each other in a report and are limited by the device's memory: what could be one kernel."""

from __future__ import annotations

from perfkit.measures.device._kernel_classes import class_of
from perfkit.measures.ncu._metrics import first, time_ns
from perfkit.measures.results.kernel_profiles import BUSY, DramChain
from perfkit.trace.nsight.ncu import Launch

#: Classes of kernels that read and write each element once or twice, so that their neighbours can do it for them.
_FUSIBLE = ("elementwise", "reduction", "layout conversion", "copy")
#: Kernels of a chain that are named: longer ones are cut, and go on as the next.
_LONGEST = 8
#: Chains that are kept, the longest: what a person reads.
_CHAINS = 20

COMPUTE = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "sm__throughput.avg.pct_of_peak_sustained_active")
DRAM = (
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)


def dram_chains(launches: tuple[Launch, ...], total_ns: int | None) -> tuple[DramChain, ...]:
    """The chains of two kernels or more, by the time that they take; empty for a report without times."""
    if not total_ns:
        return ()
    found: dict[tuple[str, ...], list[float]] = {}
    chain: list[Launch] = []

    def end() -> None:
        if len(chain) > 1:
            times = found.setdefault(tuple(one.kernel for one in chain), [])
            times.append(sum(time_ns(one) or 0.0 for one in chain))
        chain.clear()

    for launch in launches:
        if chain and (len(chain) == _LONGEST or not _follows(chain[-1], launch)):
            end()
        if _is_fusible(launch):
            chain.append(launch)
        else:
            end()
    end()
    chains = [
        DramChain(kernels=names, count=len(times), total_ns=round(sum(times)), share=sum(times) / total_ns)
        for names, times in found.items()
    ]
    return tuple(sorted(chains, key=lambda one: -one.total_ns)[:_CHAINS])


def _follows(before: Launch, launch: Launch) -> bool:
    """Whether it is the next launch of the report in the same process, on the same stream."""
    same = (before.process, before.device, before.stream) == (launch.process, launch.device, launch.stream)
    return same and before.id is not None and launch.id == before.id + 1


def _is_fusible(launch: Launch) -> bool:
    dram, compute = first(launch.metrics, DRAM), first(launch.metrics, COMPUTE)
    bound = dram is not None and dram >= 100 * BUSY and (compute is None or compute < dram)
    return bound and launch.count == 1 and class_of(launch.kernel) in _FUSIBLE
