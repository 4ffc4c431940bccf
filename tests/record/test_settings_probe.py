"""Settings of torch and of the optimizers, as they are read between steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import nn

from perfkit.record.stepped_optimizers import SteppedOptimizers
from perfkit.record.watchers import settings_probe
from perfkit.record.watchers.settings_probe import SettingsProbe
from perfkit.run.records import MODELS


def test_a_setting_has_the_value_of_most_readings() -> None:
    probe = SettingsProbe(SteppedOptimizers())
    for step in range(5):
        with torch.autograd.set_detect_anomaly(step > 1):
            probe.read()

    assert probe.settings["torch.anomaly_enabled"] == "True"
    assert probe.settings["torch.deterministic"] == "False"
    assert int(probe.settings["anomaly.stack_ns"]) > 0


def test_a_cost_is_the_median_of_eight_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = iter([5, 0, 0, 7, 6, 900, 6, 8, 10_000, 20_000])
    monkeypatch.setattr(settings_probe, "_stack_cost", lambda: next(costs))
    probe = SettingsProbe(SteppedOptimizers())

    with torch.autograd.set_detect_anomaly(True):
        for _step in range(10):
            probe.read()

    assert probe.settings["anomaly.stack_ns"] == "6"
    assert next(costs) == 10_000


def test_the_speed_of_the_machine_is_measured_in_a_few_readings_and_in_inference_mode_too() -> None:
    probe = SettingsProbe(SteppedOptimizers())
    with torch.inference_mode():
        probe.read()
    for _step in range(9):
        probe.read()

    times = {name: int(value) for name, value in probe.settings.items() if name.startswith("speed.")}
    assert [*times] == ["speed.product_ns", "speed.copy_ns", "speed.exp_ns", "speed.op_ns"]
    assert times["speed.product_ns"] > times["speed.op_ns"] > 0


def test_the_share_of_subnormal_numbers_in_the_largest_states_is_known() -> None:
    weight = nn.Parameter(torch.ones(1000, 4))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.state[weight]["exp_avg"][:250] = 1e-40
    probe = SettingsProbe(SteppedOptimizers([optimizer]))
    for _step in range(8):
        probe.read()

    # Of two states of that size, one has a quarter.
    assert float(probe.settings["optimizer.subnormal_share"]) == pytest.approx(0.125, abs=0.001)
    optimizer.state["odd"] = [1]  # a state that has no tensors by name is no error
    for _step in range(8):
        probe.read()


class Tagger(nn.Module):
    """A model whose line is looked for."""


MADE_AT = sys._getframe().f_lineno + 1
TAGGER = Tagger()


def test_the_lines_that_make_the_models_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_probe, "user_files", lambda: (__file__,))
    probe = SettingsProbe(SteppedOptimizers())
    probe.read()

    calls = probe.calls(padded=False, models=frozenset({"Tagger"}))

    assert [(at.line, at.function) for at in calls[MODELS]] == [(MADE_AT, "Tagger(...)")]
    assert probe.calls(padded=False, models=frozenset({"Tagger"})) == calls


def test_there_are_no_settings_before_the_first_reading() -> None:
    probe = SettingsProbe(SteppedOptimizers())

    assert probe.settings == {}
    assert probe.calls(padded=True, models=frozenset({"Net"})) == {}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (lambda weights: torch.optim.Adagrad(weights, lr=0.1), True),
        (lambda weights: torch.optim.SGD(weights, lr=0.1), True),
        (lambda weights: torch.optim.Adagrad(weights, lr=0.1, weight_decay=0.1), False),
        (lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9), False),
        (lambda weights: torch.optim.SGD([{"params": weights, "weight_decay": 0.1}], lr=0.1), False),
        (lambda weights: torch.optim.Adam(weights, lr=0.1), False),
    ],
    ids=["Adagrad", "SGD", "with decay", "with momentum", "decay of a group", "Adam"],
)
def test_an_optimizer_that_leaves_unused_rows_as_they_are_is_told_and_sparse_gradients_give_it_the_same_weights(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], exact: bool
) -> None:
    weights = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(20, 3, sparse=sparse)
        optimizer = make(list(table.parameters()))
        for rows in (torch.tensor([1, 2, 2]), torch.tensor([3])):
            optimizer.zero_grad()
            table(rows).square().sum().backward()
            with suppress(RuntimeError):  # what takes no sparse gradients
                optimizer.step()
        weights.append(table.weight.detach())
    probe = SettingsProbe(SteppedOptimizers([optimizer]))
    probe.read()

    assert [facts.sparse_is_exact for facts in probe.optimizers] == [exact]
    # With momentum the weights are the same as well, but each step updates all rows that any step has used.
    assert torch.allclose(*weights) or not exact


@pytest.mark.parametrize("to_none", [True, False])
def test_kept_gradients_are_distinguished_from_those_set_to_none(to_none: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    probe = SettingsProbe(SteppedOptimizers([optimizer]))
    for _step in range(3):
        optimizer.zero_grad(set_to_none=to_none)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        probe.read()

    [facts] = probe.optimizers
    assert facts.keeps_gradients is not to_none
    assert (facts.kind, facts.tensors, facts.elements, facts.dtypes) == ("SGD", 2, 8, ("float32",))
    assert (facts.foreach, facts.fused) == (None, True)
