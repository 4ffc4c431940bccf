"""The limits of this machine as a table of `perfkit doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.table import Table

from perfkit import _env
from perfkit._background import BackgroundError
from perfkit._format import rate, size
from perfkit._stderr import print_message
from perfkit.limits.limits_cache import all_cached_limits, limits_file, measure_and_keep
from perfkit.run.records import MachineLimits

#: Bytes between two calls: more than caches near the core hold.
_OF_OTHERS = 2**23
#: Sizes of memory that a person reads; the record has more.
_SHOWN_BYTES = (2**15, 2**17, 2**21, 2**23, 2**25, 2**27)
_ACCESSES = {"read": "read", "copy": "read and written elsewhere", "update": "read and written in place"}


def limits_of_machine() -> list[MachineLimits]:
    """The limits by number of threads; those of one thread and of torch's default are measured where unknown."""
    torch = _env.package_version("torch")
    if torch is None:
        return []
    found = {limits.threads: limits for limits in all_cached_limits()}
    for threads in sorted({1, int(_env.settings().get("torch.num_threads", "1"))} - set(found)):
        print_message(f"measuring what this machine could do with {threads} thread{'s' * (threads > 1)}: some seconds")
        try:
            found[threads] = measure_and_keep(torch, threads)
        except BackgroundError as error:
            print_message(f"it was not measured: {error}")
    return [found[threads] for threads in sorted(found)]


def limits_table(found: Sequence[MachineLimits]) -> Table:
    """One column for each number of threads."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column("limits of this machine")
    for limits in found:
        table.add_column(f"{limits.threads} thread{'s' * (limits.threads > 1)}", justify="right")
    rows = [dict(_rows(limits)) for limits in found]
    for name in dict.fromkeys(name for column in rows for name in column):
        table.add_row(name, *(column.get(name, "") for column in rows))
    return table


def _rows(limits: MachineLimits) -> Iterator[tuple[str, str]]:
    for precision, rates in limits.products.items():
        yield f"matrix product, {precision}", f"{rate(max(at.per_s for at in rates) / 1e9)} GFLOP/s"
    for precision, rates in limits.convolutions.items():
        yield f"convolution, {precision}", f"{rate(max(at.per_s for at in rates) / 1e9)} GFLOP/s"
    for access, text in _ACCESSES.items():
        for at in limits.bandwidth.get(access, ()):
            if at.size in _SHOWN_BYTES:
                yield f"{size(at.size)} {text}", f"{rate(at.per_s / 1e9)} GB/s"
    yield "one op on one element", f"{limits.op_ns / 1e3:.2f} µs"
    if limits.overheads:
        yield "the same after ops that took the caches", f"{limits.overhead_ns('op', _OF_OTHERS) / 1e3:.1f} µs"
    yield "one node of a backward", f"{limits.node_ns / 1e3:.2f} µs"
    if limits.subnormals:
        yield "ops with a tenth of subnormal numbers", f"{limits.subnormals:.1f} times as long"
    yield "measured", time.strftime("%Y-%m-%d %H:%M", time.localtime(limits.measured_at_ns / 1e9))
    yield "disturbed by other programs", "yes" if limits.disturbed else "no"


def limits_note(found: Sequence[MachineLimits]) -> str:
    """Where the limits are kept, and how to measure them again."""
    folder = limits_file(found[0].torch, found[0].threads).parent
    return f"{found[0].cpu}, torch {found[0].torch}; kept in {folder}, remove it to measure again"
