"""Embedding tables with dense gradients of which a batch uses few rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfkit.measures.results.patterns import EmbeddingGradient, Patterns
from perfkit.run.records import Rank

#: Lookups of at most this share of the rows leave most of the table alone (chosen).
_FEW = 0.25


def little_used(patterns: Patterns, rank: Rank) -> list[EmbeddingGradient]:
    """The tables of which a batch looks up few rows, those of one shape together."""
    elements = sum(one.elements for one in rank.optimizers)
    return [one for one in _by_shape(patterns.tables, elements) if one.looked_up <= _FEW * one.rows]


def _by_shape(tables: Sequence[EmbeddingGradient], elements: int) -> Iterator[EmbeddingGradient]:
    """The tables of each shape together: as many as lookups in one, but no more than the optimizers have."""
    shapes: dict[tuple[int, int], list[EmbeddingGradient]] = defaultdict(list)
    for one in tables:
        shapes[one.rows, one.columns].append(one)
    for (rows, columns), alike in shapes.items():
        lookups = sum(one.lookups for one in alike)
        count = max(1, min(round(lookups), elements // max(1, rows * columns)))
        yield EmbeddingGradient(
            rows=count * rows,
            columns=columns,
            looked_up=sum(one.looked_up for one in alike),
            ns=sum(one.ns for one in alike),
            lookups=lookups,
            at=max(alike, key=lambda one: one.ns).at,
        )
