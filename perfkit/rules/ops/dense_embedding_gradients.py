"""Embedding tables get gradients as large as they are, though a batch uses few of their rows.

Problem: the gradient of `nn.Embedding` is a tensor of the whole table. In each step it is filled with zeros, and the
optimizer reads and writes it, the table and its states, row after row that no sample of the batch has used.

How it shows: the batch looks up at most a quarter as many rows as the tables have, and their backward and their part of
the update are 5% of the step or more.

Causes: `sparse=False`, the default; large vocabularies, and tables of users, items or words that are trained with Adam.

Fix: sparse gradients, with an optimizer that takes them: SparseAdam, Adagrad, or SGD. SparseAdam changes the moments of
the rows that a batch uses, and leaves those of all others: losses differ a little.

    items = nn.Embedding(1_000_000, 64, sparse=True)
    optimizer = torch.optim.SparseAdam(items.parameters(), lr=0.01)      # and another one for all other parameters

Saving: the tables' backward, and their part of the update by the number of elements, both by the share of rows that the
batch does not use: all of it at most, 60% of it at least (chosen; two programs saved 74 and 95%).

Source: the shapes of the lookups in the step for lines, and the optimizers' numbers of elements. Adagrad, and SGD
without momentum, both without weight decay, change the same weights with sparse gradients as with dense ones;
`clip_grad_norm_` refuses them. Where only fused=True is as exact, this is information: it comes after that. So it is
where a library's Trainer makes the optimizer: none has an argument for sparse gradients, so that the program has to
make its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.faster_updates import FUSED
from perfkit.ledger.rows import COMPUTING, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.patterns import Patterns
from perfkit.rules._places import is_made_by_trainer, to_edit
from perfkit.rules._settings import first_call
from perfkit.rules.ops._embedding_tables import little_used, sparse_is_exact
from perfkit.run.records import Rank

ID = "dense-embedding-gradients"
CLAIMS = (*COMPUTING, Selector(phase="optimizer"), Selector(names=("optimizer",)))

#: The share of the cost that is saved at least: a row of a sparse gradient costs more than one of a dense one (chosen).
_MINIMUM = 0.6


def check(step: StepBudget, patterns: Patterns, rank: Rank) -> Iterator[Finding]:
    """Find tables of which a batch uses few rows, and their part of the backward and of the update."""
    elements = sum(one.elements for one in rank.optimizers)
    tables = little_used(patterns, rank)
    if not tables or not elements:
        return
    update_ns = _update_ns(step, patterns)
    cost = 0.0
    for one in tables:
        part = min(1.0, one.rows * one.columns / elements)
        cost += (1 - one.looked_up / one.rows) * (step.of_pattern(one.ns, patterns) + part * update_ns)
    if step.is_negligible(cost):
        return
    largest = max(tables, key=lambda one: one.rows * one.columns)
    optimizer = max(rank.optimizers, key=lambda one: one.elements)
    update = max(patterns.updates, key=lambda one: one.host_ns, default=None)
    rows = sum(one.rows for one in tables)
    used = percent(sum(one.looked_up for one in tables), rows)
    is_exact = sparse_is_exact([optimizer], rank)
    fused_first = optimizer.kind in FUSED and not optimizer.fused and not is_exact
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=update.at if update is not None and update.at is not None else largest.at,
        # Where the optimizer takes them as it is, only the tables have an argument to be set.
        change=(first_call(rank, "Embedding", "EmbeddingBag") if is_exact else None)
        or to_edit(rank, optimizer.created_at, "optim"),
        message=(
            f"A batch looks up {used} of the {rows:,} rows of embedding tables, and all of them get gradients and "
            f"updates: {step.shown(cost)}."
        ),
        advice=(
            f"nn.Embedding(..., sparse=True): {optimizer.kind} then updates the rows of the batch, to the same weights"
            f"{'; without fused=True, which refuses sparse gradients' if optimizer.fused else ''}."
            if is_exact
            else "nn.Embedding(..., sparse=True), and torch.optim.SparseAdam for it: moments of unused rows stay."
        ),
        severity="info" if is_made_by_trainer(optimizer.created_at) or fused_first else None,
        confidence="medium",
        evidence=(
            Evidence("rows that are looked up", used, "", "shapes of the lookups, each counted"),
            Evidence.ms("backward of the lookups", sum(one.ns for one in tables), f"{patterns.source}, per step"),
            Evidence.percent(
                "elements in these tables", sum(one.rows * one.columns for one in tables) / elements, 1, "rank.json"
            ),
        ),
    )


def _update_ns(step: StepBudget, patterns: Patterns) -> float:
    """The time of all updates: as the step clock has it, on a device that of their kernels."""
    if step.device is not None:
        return sum(one.device_ns or 0 for one in patterns.updates)
    timed = step.phase("optimizer")
    return timed.ns if timed is not None else 0
