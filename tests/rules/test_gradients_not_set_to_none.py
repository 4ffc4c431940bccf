"""gradients-not-set-to-none: gradients filled with zeros cost their filling and their adding."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.measures.results.host import Ops, OpTime, RangeTime
from perfkit.rules.memory import gradients_not_set_to_none
from perfkit.run.records import OptimizerFacts

MS = 1_000_000
AT = Location(file="train.py", line=29, function="main")


def zeroing(build: Any, *, keeps: bool | None) -> list[Finding]:
    facts = OptimizerFacts(kind="SGD", tensors=6, elements=8_000_000, dtypes=("float32",), keeps_gradients=keeps)
    add = OpTime(name="torch::autograd::AccumulateGrad", count=12, total_ns=16 * MS, self_ns=1)
    return build.findings(
        gradients_not_set_to_none,
        build.step(80, forward=80),
        msgspec.structs.replace(build.rank(), optimizers=(facts,), calls={"zero_grad": (AT,)}),
        Ops(steps=2, count=1, wall_ns=1, rows=(add,), floor_ns=None),
        RangeTime(name="Optimizer.zero_grad#SGD.zero_grad", count=2, host_ns=8 * MS),
    )


def test_gradients_filled_with_zeros_cost_their_filling_and_their_adding(build: Any) -> None:
    [finding] = zeroing(build, keeps=True)

    assert (finding.saving_low_ns, finding.saving_high_ns, finding.spent) == (9 * MS, 13.8 * MS, AT)
    for keeps in (False, None):
        assert zeroing(build, keeps=keeps) == []
