"""dense-embedding-gradients: the backward and the update of large tables, by the share of rows that stay unused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.measures.results.patterns import EmbeddingGradient, OptimizerUpdate
from perfkit.rules.ops import dense_embedding_gradients
from perfkit.run.records import OptimizerFacts

MS = 1_000_000
MADE = Location(file="train.py", line=3, function="Adam(...)", owner="user")


def optimizer(elements: int = 4_000_000, *, fused: bool | None = True, kind: str = "Adam") -> OptimizerFacts:
    return OptimizerFacts(kind=kind, tensors=2, elements=elements, dtypes=("float32",), fused=fused, created_at=MADE)


def table(looked_up: float, rows: int = 50_000, line: int = 12, ns: int = MS) -> EmbeddingGradient:
    at = Location(file="train.py", line=line, function="forward")
    return EmbeddingGradient(rows=rows, columns=40, looked_up=looked_up, ns=ns, at=at)


def found(build: Any, facts: OptimizerFacts, *tables: EmbeddingGradient) -> list[Finding]:
    """In a step of 20 ms, 8 of them in the optimizer."""
    update = OptimizerUpdate(name=facts.kind, host_ns=8 * MS, ops=3, foreach=0, fused=3, op_ns=7 * MS)
    measures = build.step(20, forward=12, optimizer=8), build.patterns(step_ms=20, tables=tables, updates=(update,))
    return build.findings(dense_embedding_gradients, *measures, build.rank(optimizers=(facts,)))  # type: ignore[no-any-return]


def test_tables_cost_their_backward_and_their_part_of_the_update_by_the_rows_that_are_not_used(build: Any) -> None:
    [one] = found(build, optimizer(), table(5_000))

    # 90% of the rows stay unused: of 1 ms of backward, and of half of the update.
    assert one.cost_ns == pytest.approx(0.9 * (1 + 4) * MS, rel=0.01)
    assert one.saving_low_ns == pytest.approx(0.6 * one.cost_ns, rel=0.01)
    assert (one.spent.line, one.change.line, one.severity) == (12, 3, "warning")
    assert "10% of the 50,000 rows" in one.message


def test_two_tables_of_one_shape_are_two_where_the_optimizer_has_as_many_elements(build: Any) -> None:
    [two] = found(build, optimizer(), table(5_000), table(5_000, line=13))
    [same] = found(build, optimizer(2_000_000), table(5_000), table(5_000, line=13))

    [one_line] = found(build, replace(optimizer(), matrices={"50000x40": 2}), table(10_000))
    [one_table] = found(build, replace(optimizer(), matrices={"50000x40": 1}), table(3_000), table(3_000, line=13))

    assert "of the 100,000 rows" in two.message
    assert "of the 100,000 rows" in one_line.message
    assert "12% of the 50,000 rows" in one_table.message
    assert "20% of the 50,000 rows" in same.message


def test_a_plain_update_that_can_be_fused_comes_first(build: Any) -> None:
    assert [one.severity for one in found(build, optimizer(fused=None), table(500))] == ["info"]
    assert [one.severity for one in found(build, optimizer(fused=None, kind="NAdam"), table(500))] == ["warning"]


def test_where_sparse_gradients_change_no_result_they_come_before_a_fused_update(build: Any) -> None:
    facts = replace(optimizer(fused=None, kind="Adagrad"), sparse_is_exact=True)

    [one] = found(build, facts, table(500))
    [with_decay] = found(build, replace(facts, sparse_is_exact=False), table(500))

    assert (one.severity, with_decay.severity) == ("warning", "info")
    assert "Adagrad then updates the rows of the batch" in one.advice
    assert "SparseAdam" in with_decay.advice


def test_where_the_optimizer_takes_sparse_gradients_only_the_table_is_changed(build: Any) -> None:
    at = Location(file="train.py", line=9, function="Embedding(...)")
    update = OptimizerUpdate(name="Adagrad", host_ns=8 * MS, ops=3, foreach=0, fused=3, op_ns=7 * MS)
    patterns = build.patterns(step_ms=20, tables=(table(500),), updates=(update,))
    step = build.step(20, forward=12, optimizer=8)

    def changed(*, exact: bool) -> Location | None:
        facts = replace(optimizer(fused=None, kind="Adagrad"), sparse_is_exact=exact)
        rank = build.rank(optimizers=(facts,), calls={"Embedding": (at,)})
        [one] = build.findings(dense_embedding_gradients, step, patterns, rank)
        return one.change  # type: ignore[no-any-return]

    # Otherwise the optimizer becomes two.
    assert (changed(exact=True), changed(exact=False)) == (at, MADE)


def test_where_gradients_are_clipped_sparse_ones_are_refused(build: Any) -> None:
    facts = replace(optimizer(fused=None, kind="Adagrad"), sparse_is_exact=True)
    clips = {"clip_grad_norm_": (Location(file="train.py", line=20, function="clip_grad_norm_(...)"),)}
    update = OptimizerUpdate(name="Adagrad", host_ns=8 * MS, ops=3, foreach=0, fused=3, op_ns=7 * MS)
    patterns = build.patterns(step_ms=20, tables=(table(500),), updates=(update,))
    rank = build.rank(optimizers=(facts,), calls=clips)

    [one] = build.findings(dense_embedding_gradients, build.step(20, forward=12, optimizer=8), patterns, rank)

    assert one.severity == "info"


def test_an_optimizer_that_a_trainer_makes_takes_no_argument_for_it(build: Any) -> None:
    made = Location(file="transformers/trainer.py", line=900, function="create_optimizer", owner="transformers")

    assert [one.severity for one in found(build, replace(optimizer(), created_at=made), table(500))] == ["info"]


def test_tables_of_which_much_is_used_and_small_ones_are_not_reported(build: Any) -> None:
    assert not found(build, optimizer(), table(20_000))
    assert not found(build, optimizer(400_000_000), table(0, rows=500, ns=MS // 100))
    assert not found(build, optimizer())
