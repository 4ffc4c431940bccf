"""The backward of indexing sorts the index, where rows could be added up as they come.

Problem: `x[index]` may take a row several times, and its gradient adds those up. On a GPU that backward sorts the index
first, so that they are added in a fixed order, and then goes through each row's duplicates one after the other.

How it shows: below nodes `IndexBackward0` an `aten::_index_put_impl_` runs kernels of a radix sort and
`indexing_backward_kernel`; of the step's device they take 5% or more.

Causes: messages along the edges of a graph (`h[source]`), rows of a table that is no `nn.Embedding`, samples or tokens
that are routed by numbers, with `[...]` on a tensor whose gradient is needed.

Fix: the call that takes rows. Its backward is index_add_, which sorts nothing.

    messages = h.index_select(0, source)          # not: h[source]
    messages = F.embedding(source, h)             # the same of a matrix; its backward has a fixed order too

Values are the same. The gradients of rows that are taken several times are sums in another order on a GPU, so that
their last digits differ, also from run to run.

Saving: at most all of the time of these kernels; half of it at least (chosen), since the rows are still added.

Source: the shapes in a trace: rows of whole length, as many as the one index of one dimension has. Masks, several
indices and indices of other dimensions are not counted, nor are as many rows as the tensor has: that may be an index of
columns. In deterministic mode index_add_ sorts as well, and this rule is silent. It is silent on a CPU, where that
backward sorts nothing: there index_select saved from none of the time of indexing to more than half of it
(CALIBRATION.md). Not measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.measures.results.patterns import Patterns
from perfkit.rules._settings import is_on
from perfkit.run.records import Rank

ID = "indexing-backward"
CLAIMS = COMPUTING

#: The share of the kernels that is saved at least: chosen, nothing was timed on a GPU.
_MINIMUM = 0.5


def check(step: DeviceStepBudget, patterns: Patterns, rank: Rank | None = None) -> Iterator[Finding]:
    """Find rows taken by indexing, and what sorting the index in their backward costs on the device."""
    if not patterns.indexing or (rank is not None and is_on(rank, "torch.deterministic")):
        return
    cost = step.of_pattern(sum(one.ns for one in patterns.indexing), patterns)
    if step.is_negligible(cost):
        return
    largest = max(patterns.indexing, key=lambda one: one.ns)
    source = f"{patterns.source}, per step"
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, cost),
        spent=largest.at,
        message=(
            f"x[index] takes {largest.taken:,} rows of a tensor of {largest.shape}, and its backward sorts the index: "
            f"{step.shown(cost)}."
        ),
        advice="Take rows by x.index_select(0, index): its backward adds them up without a sort.",
        confidence="medium",
        evidence=(
            Evidence.ms("kernels that sort and add up", cost, source),
            Evidence("backwards of indexing", round(sum(one.count for one in patterns.indexing), 1), "", source),
        ),
    )
