"""Syncs are told by line, priced where they have a price, and never counted twice."""

from __future__ import annotations

from typing import Any

from perfkit.measures.results import SyncCall
from perfkit.rules.sync_in_step import check
from perfkit.run.records import SyncEvent, Syncs

MS = 1_000_000


def event(line: int, per_step: float = 1.0, **fields: Any) -> SyncEvent:
    defaults: dict[str, Any] = {"kind": "read", "op": "item()", "file": "train.py", "function": "train", "raw_syncs": 1}
    return SyncEvent(line=line, count=round(10 * per_step), per_step=per_step, **{**defaults, **fields})


def dry(*events: SyncEvent, observed: bool = True) -> Syncs:
    return Syncs(mode="dry", observed=observed, steps=10, events=events)


def test_a_sync_of_a_dry_run_has_no_price_and_says_why(build: Any) -> None:
    [finding] = check(build.measured(step=build.step(50, forward=50), syncs=dry(event(42))))

    assert (finding.file, finding.line, finding.severity) == ("train.py", 42, "warning")
    assert finding.lost_ns is None
    assert finding.message == "item() waits for the device once per step."
    assert [item.source for item in finding.evidence if item.value is None] == [
        "on a CPU there is no device to wait for"
    ]


def test_each_line_is_one_finding_with_the_syncs_of_the_line_together(build: Any) -> None:
    syncs = dry(event(42), event(42, 2.0, op="bool()"), event(50))

    findings = list(check(build.measured(syncs=syncs)))

    assert [(finding.line, finding.message) for finding in findings] == [
        (42, "item() and bool() wait for the device 3 times per step."),
        (50, "item() waits for the device once per step."),
    ]


def test_rare_syncs_are_told_together_for_information(build: Any) -> None:
    [finding] = check(build.measured(syncs=dry(event(7, 0.1), event(8, 0.2))))

    assert finding.severity == "info"
    assert finding.message == "2 further lines sync in fewer than every second step: train.py:7, train.py:8."


def test_a_librarys_sync_is_told_as_such(build: Any) -> None:
    [finding] = check(build.measured(syncs=dry(event(9, owner="lightning", file="lightning/loop.py"))))

    assert finding.severity == "info"
    assert finding.message.endswith("inside lightning: not a line of yours.")


def test_a_dry_run_that_saw_no_device_tensor_is_no_pass(build: Any) -> None:
    [finding] = check(build.measured(syncs=dry(observed=False)))

    assert finding.severity == "info"
    assert "not checked" in finding.message


def test_a_loop_without_syncs_is_no_finding(build: Any) -> None:
    assert list(check(build.measured(step=build.step(50, forward=50), syncs=dry()))) == []


def test_lines_of_a_cuda_run_share_no_more_than_the_idle_time(build: Any) -> None:
    syncs = Syncs(
        mode="cuda",
        observed=True,
        steps=10,
        events=(event(1, blocked_ns=300 * MS), event(2, blocked_ns=100 * MS)),
    )
    # 40 ms blocked per step of 100 ms, but the device was idle for 20 ms of it apart from data loading.
    device = build.device(1000, compute=700, causes={"sync": 50, "python": 150, "data loading": 100})

    findings = list(check(build.measured(step=build.step(100, forward=100), syncs=syncs, devices=(device,))))

    assert [finding.lost_ns for finding in findings] == [15 * MS, 5 * MS]
    assert [finding.gain_low_ns for finding in findings] == [3_750_000, 1_250_000]


def test_blocking_calls_of_a_trace_are_told_by_op(build: Any) -> None:
    calls = (
        SyncCall(name="cudaStreamSynchronize", op="aten::item", range=None, count=80, blocked_ns=800 * MS),
        SyncCall(name="cudaDeviceSynchronize", op=None, range=None, count=1, blocked_ns=900 * MS),
    )

    [finding] = check(build.measured(trace_step=build.step(100, forward=100), sync_calls=calls))

    assert finding.message == "aten::item blocks the host twice per step, 20.0 ms per step."
    assert finding.lost_ns == 20 * MS


def test_a_sync_seen_live_is_not_told_again_from_the_trace(build: Any) -> None:
    calls = (SyncCall(name="cudaStreamSynchronize", op="aten::item", range=None, count=40, blocked_ns=400 * MS),)
    syncs = Syncs(mode="cuda", observed=True, steps=10, events=(event(42),))

    [finding] = check(build.measured(trace_step=build.step(100, forward=100), sync_calls=calls, syncs=syncs))

    assert (finding.line, finding.lost_ns) == (42, 10 * MS)
