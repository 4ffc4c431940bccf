"""The dry run's table: which ops wait is measured, by version of torch; names and rules on arguments are written."""

from __future__ import annotations

import pytest
import torch

from perfkit.syncs.dry_run import op_table
from perfkit.syncs.dry_run.op_table import named_ops, rule_for
from perfkit.syncs.dry_run.waiting_ops import WAITING_OPS

MEASURED = tuple(WAITING_OPS)


def rows(version: str) -> dict[str, str]:
    """Op -> the certainty of its sync, for each op that was measured on any torch or has a name."""
    known = {op for ops in WAITING_OPS.values() for op in ops} | named_ops()
    found = {}
    for op in sorted(known - set(op_table._RULES)):
        name, _, overload = op.partition(".")
        rule = rule_for(name, overload, version)
        cause = None if rule is None else rule((torch.ones(1),), {})
        if cause is not None:
            found[op] = cause.certainty
    return found


def test_from_torch_2_13_to_2_14_these_rows_moved() -> None:
    older, newer = rows("2.13.0"), rows("2.14.1")
    moved = {op for op in {*older, *newer} if older.get(op) != newer.get(op)}

    assert moved == MOVED


#: In 2.14 `normal` checks its std tensor on the device, and two ops are new; `cholesky` has gone.
MOVED = {
    *("aten::normal.Tensor_Tensor", "aten::normal.float_Tensor"),
    *("aten::linalg_matrix_sqrth", "aten::linalg_polar"),
    "aten::cholesky",
}


@pytest.mark.parametrize("op", ["aten::multinomial", "aten::embedding_renorm_"])
@pytest.mark.parametrize("version", MEASURED)
def test_ops_that_were_thought_to_wait_have_no_row(op: str, version: str) -> None:
    assert rule_for(op, "", version) is None


@pytest.mark.parametrize("version", MEASURED)
def test_each_op_that_always_waited_has_a_row(version: str) -> None:
    always = [op for op, waits in WAITING_OPS[version].items() if waits == "always" and op != "aten::_to_copy"]

    assert len(always) > 25
    for op in always:
        name, _, overload = op.partition(".")
        assert rule_for(name, overload, version) is not None, op


def test_an_op_that_waited_and_has_no_name_is_named_after_itself() -> None:
    rule = rule_for("aten::linalg_matrix_exp", "", "2.13.0")

    assert rule is not None
    cause = rule((), {})
    assert cause is not None
    assert (cause.kind, cause.op, cause.certainty) == ("other", "linalg_matrix_exp", "certain")


def test_another_torch_has_the_table_of_the_newest_before_it_or_of_the_oldest() -> None:
    assert rule_for("aten::normal", "Tensor_Tensor", "2.4.1") is not None
    assert rule_for("aten::normal", "Tensor_Tensor", "2.13.2+cu130") is not None
    assert rule_for("aten::normal", "Tensor_Tensor", "2.15.0a0+git1234") is None
