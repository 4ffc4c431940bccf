"""What Nsight Compute's own rules advise for each kernel, with the saving that they estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles, ToolAdvice
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables.kernel_profiles import NEEDS


class KernelAdvice(NamedTuple):
    """One rule's advice for one kernel."""

    kernel: KernelProfile
    advice: ToolAdvice


def _rows(source: TableSource) -> Iterator[KernelAdvice]:
    for kernel in source.rows(KernelProfile, KernelProfiles):
        yield from (KernelAdvice(kernel, advice) for advice in kernel.advice)


TABLE = TableDefinition(
    name="kernel-advice",
    title="Advice of Nsight Compute",
    needs=f"{NEEDS}; a CSV needs the details page: `ncu --import REPORT --page details --csv`",
    rows=_rows,
    note=lambda source: (
        "The texts of Nsight Compute's rules for the longest launch of each kernel. Its estimates are parts of that"
        " launch's time; a local one is a part of what the rule looks at only."
    ),
    fields=(
        TableField("kernel", "text", "kernel.name"),
        TableField("share", "share", "kernel.share"),
        TableField("rule", "text", "advice.rule"),
        TableField("estimated saving", "share", "advice.saving_share"),
        TableField("estimate of", "text", lambda one: "the rule's part" if one.advice.is_local else "the launch"),
        TableField("text", "text", "advice.text"),
        TableField("section", "text", "advice.section"),
    ),
)
