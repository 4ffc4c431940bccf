"""Calls of a model whose input grows by one position each: a text that is written again from its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfkit.measures.results.steps import GrowingInputs
from perfkit.measures.steps._median_slope import median_slope
from perfkit.measures.steps._timed_rows import timed_rows
from perfkit.run.records import Step

#: Calls in a row that grow by the same number of elements: fewer may be chance (chosen).
_MIN_CALLS = 8
#: Maximum of calls whose times are compared pair by pair.
_MAX_CALLS = 400


def measure_growing_inputs(rows: Sequence[Step]) -> GrowingInputs | None:
    """How a call's time follows the positions of its input, where each call has one position more than the last.

    None where steps are not calls of a model without a backward, where fewer than half of them grow, or where their
    elements are no multiple of what they grow by: then it is not one position of each sample.
    """
    calls = [row for row in timed_rows(rows)[0] if row.mode != "train" and row.steps == 1 and row.model_calls == 1]
    growing = [one for chain in _chains(calls) if chain[0].input_elements % chain[0].grows == 0 for one in chain]
    if 2 * len(growing) < len(calls) or not growing:
        return None
    chosen = growing[:: max(1, len(growing) // _MAX_CALLS)]
    positions = np.array([one.input_elements / one.grows for one in chosen])
    # The processor time of the thread: other programs lengthen the step by more than the difference of two calls.
    times = np.array([one.row.thread_ns or one.row.wall_ns for one in chosen])
    slope = median_slope(positions, times)
    return GrowingInputs(
        calls=len(growing),
        share=len(growing) / len(calls),
        positions=float(positions.mean()),
        by_position=min(1.0, max(0.0, slope * float(positions.mean() - 1) / float(np.median(times)))),
    )


class _GrowingCall(NamedTuple):
    """A call whose input has ``grows`` elements more than that of the call before."""

    row: Step
    input_elements: int
    grows: int


def _chains(calls: Sequence[Step]) -> Iterator[list[_GrowingCall]]:
    """Runs of calls that grow by the same number of elements."""
    chain: list[_GrowingCall] = []
    for before, row in pairwise(calls):
        elements = row.input_elements or 0
        grows = elements - (before.input_elements or 0) if row.step == before.step + 1 else 0
        if not chain or grows != chain[0].grows:
            if len(chain) >= _MIN_CALLS:
                yield chain
            chain = []
        if grows > 0:
            chain.append(_GrowingCall(row, elements, grows))
    if len(chain) >= _MIN_CALLS:
        yield chain
