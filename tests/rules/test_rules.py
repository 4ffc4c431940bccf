"""What every rule promises: an id, an explanation, measures that say what they need, savings that obey Amdahl's law."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.errors import UsageError
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.host import Ops, Repeat, SyncCall
from perfkit.measures.results.measurements import Measurements
from perfkit.rules._engine import Need, Rule, explain, find_rules
from perfkit.run.records import SyncEvent, Syncs

MS = 1_000_000
RULES = find_rules()
FOLDER = Path(sys.modules["perfkit.rules"].__path__[0])
PARTS = ("Problem: ", "How it shows: ", "Causes: ", "Fix: ", "Saving: ", "Source: ")
#: A screen: what `perfkit explain` prints of a rule.
MAX_LINES, MAX_COLUMNS = 45, 120


def source_of(rule: Rule) -> Path:
    return Path(sys.modules[rule.check.__module__].__file__ or "")


def test_every_file_with_an_id_is_found_as_a_rule_of_its_family() -> None:
    files = {
        (path.parent.name, path.stem)
        for path in FOLDER.glob("*/*.py")
        if re.search(r"^ID = ", path.read_text(), re.MULTILINE)
    }

    assert files == {(rule.family, rule.id.replace("-", "_")) for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_is_the_file_of_its_id(rule: Rule) -> None:
    path = source_of(rule)

    assert (path.parent.name, path.stem) == (rule.family, rule.id.replace("-", "_"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_explains_itself_within_a_screen(rule: Rule) -> None:
    text = explain(rule.id)
    lines = text.splitlines()

    assert text.startswith(f"{rule.id}: ")
    for part in PARTS:
        # A step that mostly computes is healthy, which has no cause.
        assert f"\n{part}" in text or (rule.id, part) == ("compute-bound", "Causes: "), part
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines[1:])) <= MAX_COLUMNS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_rule_imports_another(rule: Rule) -> None:
    others = "|".join(other.id.replace("-", "_") for other in RULES)

    assert not re.search(rf"^(from|import) .*\b({others})\b", source_of(rule).read_text(), re.MULTILINE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rules_that_a_rule_follows_exist(rule: Rule) -> None:
    followed = {*rule.follows, *rule.follows_at_line, *rule.follows_in_function}

    assert followed <= {other.id for other in RULES} - {rule.id}


def can_be_missing(measure: Any) -> bool:
    """Whether a recording may lack it: a type that is derived from others may exist for all of them."""
    derive = getattr(measure, "from_measurements", None)
    return derive is None or NoneType in get_args(get_type_hints(derive)["return"])


REQUIRED = {
    need.type.__name__: need for rule in RULES for need in rule.needs if need.required and can_be_missing(need.type)
}


@pytest.mark.parametrize("need", REQUIRED.values(), ids=REQUIRED)
def test_each_required_measure_names_what_has_to_be_recorded(need: Need) -> None:
    assert isinstance(getattr(need.type, "AVAILABLE_FROM", None), str)
    assert need.available_from != need.type.__name__


def test_an_unknown_rule_is_answered_with_similar_ones() -> None:
    with pytest.raises(UsageError, match=r"no rule is called 'input-bond': did you mean input-bound"):
        explain("input-bond")
    with pytest.raises(UsageError, match=rf"no rule is called 'zzz': the rules are {RULES[0].id}, {RULES[1].id}"):
        explain("zzz")


times = st.floats(min_value=0, max_value=100, allow_nan=False)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=times,
    forward=st.floats(min_value=0.1, max_value=100),
    idle=st.lists(times, min_size=4, max_size=4),
    compute=times,
    copy=times,
    loop=st.tuples(times, times, times),
    blocked=st.lists(times, min_size=1, max_size=3),
    traced=st.booleans(),
    live=st.booleans(),
    on_device=st.booleans(),
)
def test_no_saving_exceeds_the_step_and_hardly_the_cost(
    data: float,
    forward: float,
    idle: list[float],
    compute: float,
    copy: float,
    loop: tuple[float, float, float],
    blocked: list[float],
    traced: bool,
    live: bool,
    on_device: bool,
    build: Any,
) -> None:
    causes = dict(zip(("data loading", "sync", "operators", "python"), idle, strict=True))
    device = build.device(
        sum(idle) + compute + copy + 0.1, compute=compute, copy=copy, exposed_copy=copy, causes=causes
    )
    repeat = Repeat(
        names=("aten::add",),
        iterations=50,
        ops=2000,
        host_ns=round(max(loop[:2]) * MS),
        op_ns=round(min(loop[:2]) * MS),
        backward_ns=round(loop[2] * MS),
    )
    events = tuple(
        SyncEvent(
            kind="read",
            op="item()",
            file="t.py",
            line=number,
            function="f",
            count=9,
            raw_syncs=9,
            per_step=1.0,
            blocked_ns=round(ms * MS),
        )
        for number, ms in enumerate(blocked)
    )
    call = SyncCall(name="cudaStreamSynchronize", op=None, range=None, count=99, blocked_ns=round(sum(blocked) * MS))
    step = build.step(data + forward, data=data, forward=forward)
    found = build.measurements(
        step,
        build.traced_step(2 * (data + forward), data=data, forward=forward) if traced else None,
        device if on_device else None,
        Ops(steps=3, count=1, wall_ns=1, rows=(), floor_ns=1000, repeats=(repeat,)),
        Syncs(mode="cuda", observed=True, steps=9, events=events) if live else None,
        call,
        build.rank(),
    )

    budget = StepBudget.from_measurements(found)
    assert budget is not None

    for rule in RULES:
        for finding in rule.run(found):
            if finding.cost_ns is None:
                continue
            assert 0 <= finding.cost_ns <= step.wall_ns
            assert 0 <= finding.saving_low_ns <= finding.saving_high_ns <= step.wall_ns
            # The rest of the host's step is a little faster; of a device's nothing but the cost is saved.
            assert finding.saving_high_ns <= finding.cost_ns * (1.15 if budget.waits_for_host else 1) + 1


def test_a_cost_of_the_typical_step_is_judged_by_the_mean_step_where_a_few_long_steps_take_much(build: Any) -> None:
    alone = StepBudget.from_measurements(Measurements("runs/x", build.step(10)))
    beside = StepBudget.from_measurements(Measurements("runs/x", build.step(10), build.mean_step(11)))
    rollouts = StepBudget.from_measurements(Measurements("runs/x", build.step(10), build.mean_step(30)))
    assert alone is not None
    assert beside is not None
    assert rollouts is not None

    assert [step.severity(2.6 * MS) for step in (alone, beside, rollouts)] == ["critical", "critical", "info"]
