"""Embedding tables with dense gradients of which a batch uses few rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfkit.measures.results.patterns import EmbeddingGradient, Patterns
from perfkit.run.records import OptimizerFacts, Rank

#: Lookups of at most this share of the rows leave most of the table alone (chosen).
_FEW = 0.25


def little_used(patterns: Patterns, rank: Rank) -> list[EmbeddingGradient]:
    """The tables of which a batch looks up few rows, those of one shape together."""
    return [one for one in _by_shape(patterns.tables, rank.optimizers) if one.looked_up <= _FEW * one.rows]


def _by_shape(tables: Sequence[EmbeddingGradient], optimizers: Sequence[OptimizerFacts]) -> Iterator[EmbeddingGradient]:
    """The tables of each shape together: as many as the optimizers have, or, where that was not recorded, as lines."""
    shapes: dict[tuple[int, int], list[EmbeddingGradient]] = defaultdict(list)
    for one in tables:
        shapes[one.rows, one.columns].append(one)
    elements = sum(one.elements for one in optimizers)
    for (rows, columns), alike in shapes.items():
        known = sum(one.matrices.get(f"{rows}x{columns}", 0) for one in optimizers)
        count = known or max(1, min(len(alike), elements // max(1, rows * columns)))
        yield EmbeddingGradient(
            rows=count * rows,
            columns=columns,
            looked_up=sum(one.looked_up for one in alike),
            ns=sum(one.ns for one in alike),
            at=max(alike, key=lambda one: one.ns).at,
        )


def sparse_is_exact(optimizers: Sequence[OptimizerFacts], rank: Rank) -> bool:
    """Whether sparse gradients give these optimizers the same weights, and nothing in the program refuses them."""
    exact = bool(optimizers) and all(one.sparse_is_exact for one in optimizers)
    return exact and not rank.calls.get("clip_grad_norm_")
