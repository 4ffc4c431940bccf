"""What every rule promises: an id, a text for `explain`, and gains that obey Amdahl's law."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import perfkit.rules
from perfkit.errors import UsageError
from perfkit.measures.results.host import Ops, Repeat, SyncCall
from perfkit.rules import RULES, explain
from perfkit.run.records import SyncEvent, Syncs

MS = 1_000_000


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.ID)
def test_each_rule_is_the_file_of_its_id_and_explains_itself(rule: Any) -> None:
    text = inspect.getdoc(rule) or ""

    assert Path(rule.__file__).stem == rule.ID.replace("-", "_")
    for part in ("Problem: ", "How it shows: ", "Causes: ", "Fix: ", "Gain: ", "Source: "):
        if rule.ID == "compute-bound" and part == "Causes: ":
            continue  # being healthy has none
        assert f"\n{part}" in text, part
    assert explain(rule.ID).startswith(f"{rule.ID}: ")


def test_every_rule_file_is_in_the_list() -> None:
    folder = Path(perfkit.rules.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if re.search(r"^ID = ", path.read_text(), re.MULTILINE)}

    assert files == {rule.ID.replace("-", "_") for rule in RULES}


def test_rules_import_no_other_rule() -> None:
    names = "|".join(rule.ID.replace("-", "_") for rule in RULES)
    for rule in RULES:
        source = inspect.getsource(rule)  # type: ignore[arg-type]  # rules are modules
        assert not re.search(rf"import ({names})|rules\.({names})", source), rule.ID


def test_an_unknown_rule_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no rule is called 'input-bond': did you mean input-bound"):
        explain("input-bond")
    with pytest.raises(UsageError, match=r"no rule is called 'zzz': there are input-bound, "):
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
def test_no_gain_exceeds_the_step_and_hardly_the_loss(
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
            kind="read", op="item()", file="t.py", line=n, function="f", count=9, raw_syncs=9,
            per_step=1.0, blocked_ns=round(ms * MS),
        )
        for n, ms in enumerate(blocked)
    )  # fmt: skip
    call = SyncCall(name="cudaStreamSynchronize", op=None, range=None, count=99, blocked_ns=round(sum(blocked) * MS))
    measured = build.measured(
        step=build.step(data + forward, data=data, forward=forward),
        trace_step=build.step(2 * (data + forward), data=data, forward=forward) if traced else None,
        devices=(device,) if on_device else (),
        ops=Ops(steps=3, count=1, wall_ns=1, rows=(), floor_ns=1000, repeats=(repeat,)),
        syncs=Syncs(mode="cuda", observed=True, steps=9, events=events) if live else None,
        sync_calls=(call,),
        rank=build.rank(),
    )

    for rule in RULES:
        for finding in rule.check(measured):
            if finding.cost_ns is None:
                continue
            assert 0 <= finding.cost_ns <= measured.step.wall_ns
            assert 0 <= finding.saving_low_ns <= finding.saving_high_ns <= measured.step.wall_ns
            # What goes with it makes the rest faster by a little; a device's time goes and nothing else.
            assert finding.saving_high_ns <= finding.cost_ns * (1 if on_device else 1.15) + 1
