"""Layers that compute their weight in each call: the advice names what torch has for that, and the line that did it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from perfkit._location import Location
from perfkit.record.samplers.source_lookup import find_calls
from perfkit.rules.python import repeated_in_step, repeated_work
from perfkit.rules.python._parametrized import parametrized_module
from perfkit.run.records import (
    PARAMETRIZATIONS,
    ConstantOps,
    Lines,
    ModuleCalls,
    RepeatedOps,
    TracedLine,
)

MS = 1_000_000
AT = Location(file="net.py", line=20, function="Net.forward")
NORM = Location(file="net.py", line=8, function="weight_norm(...)")


def lines(module: str, **fields: Any) -> Lines:
    calls = ModuleCalls(module=module, calls=4, host_ns=60 * MS)
    row = TracedLine(
        file="net.py",
        line=20,
        function="Net.forward",
        owner="user",
        phase="forward",
        runs=1,
        host_ns=60 * MS,
        modules=(calls,),
    )
    return Lines(period_ns=MS, steps=40, traced=(row,), **fields)


def constant() -> ConstantOps:
    return ConstantOps(
        file="net.py",
        line=20,
        function="Net.forward",
        owner="user",
        phase="forward",
        busiest=AT,
        ops=3,
        host_ns=20 * MS,
    )


def test_the_line_that_gives_a_layer_its_parametrization_is_to_be_edited(build: Any) -> None:
    step, rank = build.step(100, forward=60, backward=40), build.rank(calls={"weight_norm": (NORM,)})

    [norm] = build.findings(repeated_work, step, lines("ParametrizedConv1d", constant_ops=(constant(),)), rank)
    [plain] = build.findings(repeated_work, step, lines("Conv1d", constant_ops=(constant(),)), rank)

    assert norm.change == NORM
    assert "remove_parametrizations" in norm.advice
    assert plain.change != NORM
    assert "parametriz" not in plain.advice


@pytest.mark.parametrize("trained", [True, False])
def test_calls_of_one_step_share_a_weight(build: Any, trained: bool) -> None:
    step = build.step(100, forward=60, backward=40)
    place: dict[str, Any] = {"file": "net.py", "line": 20, "function": "Net.forward", "owner": "user", "busiest": AT}
    ops = RepeatedOps(**place, ops=9, most=3, host_ns=30, of_ns=60, builds_graph=trained)

    [finding] = build.findings(repeated_in_step, step, lines("ParametrizedLinear", repeated_ops=(ops,)))

    assert "parametrize.cached()" in finding.advice
    assert ("remove_parametrizations" in finding.advice) is not trained


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_torch_gives_the_class_and_the_functions_these_names(name: str, tmp_path: Any) -> None:
    if name == "register_parametrization":
        layer: nn.Module = nn.Linear(4, 4)
        nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())
    else:
        layer = getattr(parametrizations, name)(nn.Linear(4, 4))
    script = tmp_path / "net.py"
    script.write_text(f"layer = {name}(layer)\n")

    assert layer(torch.ones(1, 4)).shape == (1, 4)
    assert parametrized_module(lines(type(layer).__name__), AT) == "ParametrizedLinear"
    assert find_calls({name}, [str(script)])[name][0].line == 1
