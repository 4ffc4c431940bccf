"""The backward of indexing sorts the index, or adds element by element, where rows could be added up.

Problem: `x[index]` may take a row several times, and its gradient adds those up. On a GPU that backward sorts the index
first, so that they are added in a fixed order, and adds the duplicates of a row one after the other. On a CPU with
several threads each number is added by an atomic operation of its own.

How it shows: below nodes `IndexBackward0` an `aten::_index_put_impl_` runs a radix sort and `indexing_backward_kernel`,
5% of the step or more; on a CPU with two threads or more that op takes 10% of the step.

Causes: messages along the edges of a graph (`h[source]`), rows of a table that is no `nn.Embedding`, samples or tokens
that are routed by their numbers.

Fix: the call that takes rows. Its backward is index_add_, which adds whole rows and sorts nothing.

    messages = h.index_select(0, source)          # not: h[source]

Values are the same, and the gradients up to rounding: the order of their sums is another one, on a GPU in each run. In
half precision index_add_ rounds each sum to that type, which this op does not: there it is not reported.

Saving: on a GPU from nothing to all of the time of these kernels: rows are still added up, and nothing was timed. On a
CPU 45% of the op at least, and all of it at most, because the forward gets faster too (measured).

Source: the shapes in a trace: rows of whole length, by one index of one dimension. Masks, several indices and indices
of other dimensions are not counted, nor are as many rows as the tensor has: that may be an index of columns. On a CPU
one thread and all types but float32 add without atomic operations (ATen's IndexKernel.cpp), about as fast as
index_add_: they are not reported, nor are rows of fewer than 32 elements. In deterministic mode index_add_ is this op.
Measured on one CPU (CALIBRATION.md), not on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import SMALL, StepBudget
from perfkit.measures.results.patterns import IndexingGradient, Patterns
from perfkit.rules._settings import is_on, number
from perfkit.run.records import Rank

ID = "indexing-backward"
CLAIMS = COMPUTING

#: The share that is saved at least on a CPU: the least that was measured with rows of 32 elements.
_ON_CPU = 0.45
#: With rows of 8 elements 15% of the op was saved in some sizes, with 32 half of it.
_WIDE = 32
#: From as many numbers on torch divides such an addition among its threads (its GRAIN_SIZE), in float32 alone.
_DIVIDED, _FLOAT = 32_768, "float"


def check(step: StepBudget, patterns: Patterns, rank: Rank | None = None) -> Iterator[Finding]:
    """Find rows taken by indexing, and what adding up their gradients costs."""
    on_device = patterns.step_ns is None
    threads = number(rank, "torch.num_threads")
    found = [one for one in patterns.indexing if one.dtype == _FLOAT and (on_device or _is_atomic(one, threads))]
    if not found or (rank is not None and is_on(rank, "torch.deterministic")):
        return
    cost = step.of_pattern(sum(one.ns for one in found), patterns)
    if step.is_negligible(cost) or (not on_device and cost < SMALL * step.wall_ns):
        return
    largest = max(found, key=lambda one: one.ns)
    source = f"{patterns.source}, per step"
    how = "sorts the index" if on_device else "adds each element by an atomic operation"
    yield step.finding(
        cost=cost,
        saving=(0, cost) if on_device else (_ON_CPU * cost, step.maximum_saving(cost)),
        spent=largest.at,
        message=(
            f"x[index] takes {largest.taken:,} rows of a tensor of {largest.shape}, and its backward {how}: "
            f"{step.shown(cost)}."
        ),
        advice=(
            "Take rows by x.index_select(0, index): its backward adds up whole rows"
            f"{', on a GPU in another order in each run' if on_device else ''}."
        ),
        confidence="medium",
        evidence=(
            Evidence.ms("adding up the gradients of rows", cost, source),
            Evidence("backwards of indexing", round(sum(one.count for one in found), 1), "", source),
        ),
    )


def _is_atomic(one: IndexingGradient, threads: int | None) -> bool:
    """Whether the threads of a CPU add single numbers, and whole rows are wide enough to be faster."""
    divided = one.taken * one.columns >= _DIVIDED
    return threads is not None and threads > 1 and divided and one.columns >= _WIDE
