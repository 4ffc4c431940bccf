"""sync-in-step: syncs by line, with a cost where it is known, and never counted twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from trace_timeline import GEMM_BF16, Timeline

from perfkit._location import Location
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.gathering import measure
from perfkit.measures.results.device import LATE_LAUNCHES, DeviceTime
from perfkit.measures.results.host import SyncCall
from perfkit.measures.results.measurements import Measurements
from perfkit.rules._engine import Rule, run_rules
from perfkit.rules.sync import sync_in_step
from perfkit.rules.sync._blocking_calls import blocking_calls
from perfkit.run.records import LineRow, Lines, SyncEvent, Syncs

MS = 1_000_000


def event(line: int, per_step: float = 1.0, **fields: Any) -> SyncEvent:
    defaults: dict[str, Any] = {"kind": "read", "op": "item", "file": "train.py", "function": "train", "raw_syncs": 1}
    return SyncEvent(line=line, count=round(10 * per_step), per_step=per_step, **{**defaults, **fields})


def dry(*events: SyncEvent, observed: bool = True, steps: int = 10) -> Syncs:
    return Syncs(mode="dry", observed=observed, steps=steps, events=events)


def line(number: int) -> Location:
    return Location(file="train.py", line=number, function="train")


def test_a_sync_of_a_run_on_a_cpu_is_information_because_nothing_waits_there(build: Any) -> None:
    [finding] = build.findings(sync_in_step, build.step(50, forward=50), dry(event(42)))

    assert (finding.spent.file, finding.spent.line, finding.severity) == ("train.py", 42, "info")
    assert finding.cost_ns is None
    assert finding.message == "item() would wait for a GPU once per step."
    assert [item.source for item in finding.evidence if item.value is None] == [
        "on a CPU there is no device to wait for"
    ]


def test_a_sync_of_a_dry_run_is_a_problem_of_unknown_cost_where_the_run_trains_on_a_device(build: Any) -> None:
    rank = build.rank(devices=("H200",))

    [finding] = build.findings(sync_in_step, build.step(50, forward=50), dry(event(42)), rank)

    assert (finding.severity, finding.cost_ns) == ("warning", None)
    assert finding.message == "item() waits for the device once per step."


def test_a_sync_of_a_run_on_a_cpu_is_no_reason_to_doubt_that_the_step_is_healthy(build: Any) -> None:
    found = Measurements("run", build.step(50, forward=50), dry(event(42)))

    results = run_rules([Rule.of(sync_in_step)], found)

    assert results.ledger is not None
    assert results.ledger.unquantified == ()


def sampled(number: int, samples: int, within: str = "") -> Lines:
    """Samples of one line, each of 0.1 ms per step."""
    row = LineRow(
        file="train.py",
        line=number,
        function="train",
        phase="forward",
        samples=samples,
        host_ns=samples * MS // 10,
        within={within: samples},
    )
    return Lines(period_ns=MS, steps=10, rows=(row,))


def test_what_a_check_computes_on_a_cpu_is_its_cost(build: Any) -> None:
    step, syncs = build.step(50, forward=50), dry(event(42, op="bool(tensor)"), event(50))

    check, read = build.findings(sync_in_step, step, syncs, sampled(42, 100))

    assert (check.cost_ns, check.saving_low_ns, check.saving_high_ns) == (10 * MS, round(7.5 * MS), 10 * MS)
    assert "and computing what it reads takes 10.0 ms of the 50.0 ms step (20%)" in check.message
    assert read.cost_ns is None
    [metric] = build.findings(sync_in_step, step, dry(event(42)), sampled(42, 100))
    assert (metric.cost_ns, metric.saving_low_ns, metric.saving_high_ns) == (10 * MS, 0, 10 * MS)


def test_a_check_inside_torch_costs_the_time_in_torch_and_not_the_lines_own(build: Any) -> None:
    made = dry(event(42, op="bool(tensor) in Normal.__init__"))
    [row] = sampled(42, 100, within="torch.distributions").rows
    both = msgspec.structs.replace(row, samples=200, host_ns=20 * MS, within={"torch.distributions": 100, "": 100})

    [finding] = build.findings(sync_in_step, build.step(50), made, Lines(period_ns=MS, steps=10, rows=(both,)))

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (10 * MS, 5 * MS, 10 * MS)


def test_what_a_line_computes_on_the_host_with_what_it_read_is_idle_time_of_the_device(build: Any) -> None:
    device = build.device(500, compute=200, causes={"operators": 200, "sync": 100})
    copied = event(42, kind="copy-d2h", op="cpu", blocked_ns=10 * 4 * MS)
    syncs = Syncs(mode="cuda", observed=True, steps=10, events=(copied,))

    [finding] = build.findings(sync_in_step, build.step(50, forward=50), device, syncs, sampled(42, 120))

    assert finding.cost_ns == 12 * MS
    assert "computing what the line does with it takes 8.0 ms of the 50.0 ms step (16%)" in finding.message
    assert "Do on the device what the line computes" in finding.advice


@pytest.mark.parametrize(("copy_ms", "cost_ms"), [(1.5, 3.5), (9, 4)], ids=["all of it", "no more than it blocked"])
def test_a_copy_to_the_host_costs_its_time_on_the_device_too(build: Any, copy_ms: float, cost_ms: float) -> None:
    device = build.device(500, compute=380, copy=100, causes={"sync": 20})
    device = msgspec.structs.replace(device, copies_ns={"DtoH": round(10 * copy_ms * MS)})
    copied = event(42, kind="copy-d2h", op="cpu", blocked_ns=10 * 4 * MS)
    syncs = Syncs(mode="cuda", observed=True, steps=10, events=(copied,))

    [finding] = build.findings(sync_in_step, build.step(50, forward=50), device, syncs)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (1 * MS, round(cost_ms * MS))


@pytest.mark.parametrize(
    ("idle", "per_step", "samples", "cost"),
    [(2, 1.0, 120, 2), (30, 75.0, 120, 4), (30, 1.0, 45, 4)],
    ids=["the device is busy meanwhile", "a loop of reads", "it only waits"],
)
def test_a_line_that_reads_costs_no_more_than_the_device_is_idle_because_of_it(
    build: Any, idle: float, per_step: float, samples: int, cost: float
) -> None:
    device = build.device(500, compute=500 - 10 * idle, causes={"sync": 10 * idle})
    copied = event(42, per_step, kind="copy-d2h", op="cpu", blocked_ns=10 * 4 * MS)
    syncs = Syncs(mode="cuda", observed=True, steps=10, events=(copied,))

    [finding] = build.findings(sync_in_step, build.step(50, forward=50), device, syncs, sampled(42, samples))

    assert finding.cost_ns == cost * MS
    assert "computing" not in finding.message


@pytest.mark.parametrize(
    ("event_", "lines"),
    [
        (event(42), sampled(42, 20)),  # 2 ms of 50
        (event(42), sampled(42, 100, within="torch.nn")),
        (event(42, kind="shape", op="nonzero"), sampled(42, 100)),
        (event(42, owner="lightning"), sampled(42, 100)),
    ],
    ids=["little", "a layer that the line calls", "a result that is needed", "a library's line"],
)
def test_what_a_line_computes_for_other_ends_or_hardly_at_all_is_no_cost_of_its_sync(
    build: Any, event_: SyncEvent, lines: Lines
) -> None:
    [finding] = build.findings(sync_in_step, build.step(50, forward=50), dry(event_), lines)

    assert finding.cost_ns is None


def test_each_line_is_one_finding_with_the_syncs_of_the_line_together(build: Any) -> None:
    syncs = dry(event(42), event(42, 2.0, op="bool(tensor)"), event(50))

    findings = build.findings(sync_in_step, syncs)

    assert [(finding.spent.line, finding.message) for finding in findings] == [
        (42, "item() and bool(tensor) would wait for a GPU 3 times per step."),
        (50, "item() would wait for a GPU once per step."),
    ]


def test_rare_syncs_are_reported_together_as_information_with_rate_and_owner(build: Any) -> None:
    library = event(8, 0.2, owner="lightning", via="/site-packages/lightning/progress.py:685")

    [finding] = build.findings(sync_in_step, dry(event(7, 0.01), library))

    assert finding.severity == "info"
    assert finding.message == (
        "2 further lines sync in fewer than every second step: train.py:7, progress.py:685 (lightning)."
    )
    assert [item.value for item in finding.evidence] == [0.01, 0.2]


def test_a_line_that_synced_in_one_of_two_steps_is_rare_as_that_may_have_been_an_epochs_last(build: Any) -> None:
    once, always = event(35, 3.0, in_steps=1), event(31, 1.0, in_steps=2)

    found = build.findings(sync_in_step, dry(once, always, steps=2))

    assert [(finding.severity, finding.spent) for finding in found] == [("info", line(31)), ("info", None)]
    assert found[1].message == "1 further line syncs in one of 2 steps: train.py:35."


def test_a_line_that_syncs_in_several_threads_is_judged_by_the_sum(build: Any) -> None:
    threads = [event(7, 0.3, thread=f"logger-{n}") for n in range(4)]

    [finding] = build.findings(sync_in_step, dry(*threads))

    assert finding.message == "item() would wait for a GPU 1.2 times per step."


def test_a_librarys_syncs_are_one_finding_with_its_owner_and_lines(build: Any) -> None:
    own = {"owner": "lightning", "file": "train.py"}
    syncs = dry(event(9, via="/x/loop.py:3", **own), event(9, via="/x/bar.py:8", op="to", kind="copy-d2h", **own))

    [finding] = build.findings(sync_in_step, syncs)

    assert finding.severity == "info"
    assert (
        finding.message == "item() and to() would wait for a GPU twice per step, inside lightning: not a line of yours."
    )
    assert [item.value for item in finding.evidence if item.source == "lightning"] == ["/x/loop.py:3", "/x/bar.py:8"]


def test_ones_own_line_comes_before_a_librarys_that_syncs_more_often(build: Any) -> None:
    library = event(9, 3.0, via="/x/loop.py:3", owner="lightning")

    own, other = build.findings(sync_in_step, dry(library, event(42)))

    assert (own.spent, "inside lightning" in other.message) == (line(42), True)


def test_a_sync_without_a_python_line_has_no_place(build: Any) -> None:
    [finding] = build.findings(sync_in_step, dry(event(0, file="<no Python line>", function="", owner="torch")))

    assert finding.spent is None
    assert "inside torch" in finding.message


@pytest.mark.parametrize(
    ("op", "written"),
    [
        ("item", "item()"),
        ("item in clip_grad_norm_", "item() in clip_grad_norm_"),
        ("nonzero", "nonzero()"),
        ("bool(tensor)", "bool(tensor)"),
        ("boolean mask index", "boolean mask index"),
        ("mode of operation", "mode of operation"),
        ("torch.cuda.synchronize", "torch.cuda.synchronize"),
    ],
)
def test_an_op_that_is_a_tensor_method_is_written_as_a_call(build: Any, op: str, written: str) -> None:
    [finding] = build.findings(sync_in_step, dry(event(1, op=op)))

    assert finding.message == f"{written} would wait for a GPU once per step."


def test_the_names_written_as_calls_are_methods_of_a_tensor() -> None:
    import torch

    assert [name for name in sync_in_step.METHODS.split("|") if not callable(getattr(torch.Tensor, name, None))] == []


def test_a_dry_run_that_saw_no_device_tensor_is_no_pass(build: Any) -> None:
    [finding] = build.findings(sync_in_step, dry(observed=False))

    assert finding.severity == "info"
    assert "not checked" in finding.message


def test_a_loop_without_syncs_is_no_finding(build: Any) -> None:
    assert build.findings(sync_in_step, build.step(50, forward=50), dry()) == []


def test_lines_of_a_cuda_run_share_no_more_than_the_idle_time(build: Any) -> None:
    syncs = Syncs(
        mode="cuda",
        observed=True,
        steps=10,
        events=(event(1, blocked_ns=300 * MS), event(2, blocked_ns=100 * MS)),
    )
    # 40 ms blocked per step of 100 ms, but the device was idle for 20 ms because of syncs.
    device = build.device(1000, compute=550, causes={"sync": 200, "python": 150, "data loading": 100})

    findings = build.findings(sync_in_step, build.step(100, forward=100), syncs, device)

    assert [finding.cost_ns for finding in findings] == [15 * MS, 5 * MS]
    assert [finding.saving_low_ns for finding in findings] == [7_500_000, 2_500_000]


def test_blocking_calls_of_a_trace_are_reported_by_op(build: Any) -> None:
    calls = (
        SyncCall(name="cudaStreamSynchronize", op="aten::item", range=None, count=80, blocked_ns=800 * MS),
        SyncCall(name="cudaDeviceSynchronize", op=None, range=None, count=1, blocked_ns=900 * MS),
    )

    [finding] = build.findings(sync_in_step, build.traced_step(100, forward=100), calls)

    assert finding.message == "aten::item blocks the host twice per step, 20.0 ms per step."
    assert finding.cost_ns == 20 * MS


def test_an_observed_sync_is_not_reported_again_from_the_trace(build: Any) -> None:
    calls = (SyncCall(name="cudaStreamSynchronize", op="aten::item", range=None, count=40, blocked_ns=400 * MS),)
    syncs = Syncs(mode="cuda", observed=True, steps=10, events=(event(42),))

    [finding] = build.findings(sync_in_step, build.traced_step(100, forward=100), calls, syncs)

    assert (finding.spent.line, finding.cost_ns) == (42, 10 * MS)


def cuda(*events: SyncEvent) -> Syncs:
    return Syncs(mode="cuda", observed=True, steps=10, events=events)


def call(name: str, op: str | None, ms: float, count: int = 40) -> SyncCall:
    """Calls of a trace over 40 steps that blocked ``ms`` per step."""
    return SyncCall(name=name, op=op, range=None, count=count, blocked_ns=round(40 * ms * MS))


def test_a_copy_and_the_wait_after_it_are_one_sync(build: Any) -> None:
    calls = (call("cudaMemcpyAsync", "aten::item", 19), call("cudaStreamSynchronize", "aten::item", 1))
    bare = tuple(SyncCall(name=c.name, op=None, range=None, count=c.count, blocked_ns=c.blocked_ns) for c in calls)

    [with_op] = build.findings(sync_in_step, build.traced_step(100, forward=100), calls)
    [without] = build.findings(sync_in_step, build.traced_step(100, forward=100), bare)

    assert with_op.message == "aten::item blocks the host once per step, 20.0 ms per step."
    assert (
        without.message == "cudaMemcpyAsync and cudaStreamSynchronize block the host once per step, 20.0 ms per step."
    )


def test_calls_that_no_observed_line_can_have_made_are_reported_by_themselves(build: Any) -> None:
    calls = (call("cudaStreamSynchronize", "aten::item", 10), call("cudaMemcpyAsync", "aten::copy_", 20))
    step = build.traced_step(100, forward=100)

    read, copy = build.findings(sync_in_step, step, calls, cuda(event(42)))

    assert (read.spent.line, read.cost_ns) == (42, 10 * MS)
    assert copy.message == "aten::copy_ blocks the host once per step, 20.0 ms per step."
    assert (copy.spent, copy.cost_ns) == (None, 20 * MS)


def test_lines_of_different_kinds_each_have_the_cost_of_their_own_calls(build: Any) -> None:
    calls = (
        call("cudaStreamSynchronize", "aten::item", 10),
        call("cudaMemcpyAsync", "aten::to", 20),
        call("cudaDeviceSynchronize", None, 5),
    )
    lines = (event(1), event(2, kind="copy-d2h", op="cpu"), event(3, kind="explicit", op="torch.cuda.synchronize"))

    found = build.findings(sync_in_step, build.traced_step(100, forward=100), calls, cuda(*lines))

    assert [(finding.spent.line, finding.cost_ns) for finding in found] == [(1, 10 * MS), (2, 20 * MS), (3, 5 * MS)]


def test_the_cost_of_lines_of_one_kind_is_unknown_from_a_trace(build: Any) -> None:
    calls = (call("cudaStreamSynchronize", "aten::item", 10),)
    step = build.traced_step(100, forward=100)

    found = build.findings(sync_in_step, step, calls, cuda(event(1), event(2)))

    assert [(finding.spent.line, finding.cost_ns) for finding in found] == [(1, None), (2, None)]
    assert found[0].evidence[0].source == "how long each line blocked was not measured"


def test_calls_that_a_rare_line_can_have_made_are_not_one_more_sync(build: Any) -> None:
    # A window of few steps may hold the one step in a hundred that logs.
    calls = (call("cudaStreamSynchronize", "aten::item", 10),)
    step = build.traced_step(100, forward=100)

    [finding] = build.findings(sync_in_step, step, calls, cuda(event(1, 0.01)))

    assert finding.message == "1 further line syncs in fewer than every second step: train.py:1."


def recorded_training() -> Measurements:
    """Six steps of rank 3 of 8, on A100s."""
    trace = Path(__file__).resolve().parents[3] / "shared" / "traces" / "a100-8ranks-training.json.gz"
    if not trace.exists():
        pytest.skip("shared traces are not next to the checkout")
    return measure(trace)


def test_items_in_a_recorded_training_are_counted_once_each() -> None:
    found = recorded_training()
    step = StepBudget.from_measurements(found)
    assert step is not None

    items = [one for one in blocking_calls(found.all(SyncCall), step) if one.op == "aten::item"]

    # 6 and 12 `aten::item` in two ranges, each a cudaMemcpyAsync and a cudaStreamSynchronize.
    assert [one.syncs for one in items] == [6, 12]
    assert [round(one.blocked_ns / MS, 1) for one in items] == [3.6, 2.2]


def test_a_sync_under_which_the_device_works_costs_nothing() -> None:
    found = recorded_training()
    calls = found.all(SyncCall)

    # The host waits 12.7 ms per step; the device is idle for 1 ms of these and until the next launches.
    assert sum(call.blocked_ns for call in calls) / 6 == pytest.approx(12.7 * MS, rel=0.01)
    assert sum(call.idle_ns or 0 for call in calls) / 6 < 1.1 * MS
    assert Rule.of(sync_in_step).run(found) == []


def test_a_sync_costs_the_idle_time_until_the_next_launch_and_no_more_than_it_blocked(tmp_path: Path) -> None:
    """The host waits 1 ms with the device busy, then prepares for 0.3 ms; at another place it prepares for 2 ms."""

    def step(line: Timeline) -> None:
        for _ in range(10):
            line.run(GEMM_BF16, 1_000)
            line.read()
            line.spend(300)
        line.run(GEMM_BF16, 10)
        line.spend(2_000)

    found = measure(Timeline(tmp_path).steps(step).write())

    [finding] = Rule.of(sync_in_step).run(found)

    assert finding.cost_ns == pytest.approx(10 * 0.3 * MS, rel=0.05)
    assert idle_ms(found) == pytest.approx({"sync": 10 * 0.3, "late": 2.0}, abs=0.15)


def idle_ms(found: Measurements) -> dict[str, float]:
    """Idle time of the device because of syncs, and because the host launched late; in ms per step."""
    [device] = found.all(DeviceTime)
    late = sum(device.causes.get(cause, 0) for cause in LATE_LAUNCHES)
    return {"sync": device.causes["sync"] / MS / device.steps, "late": late / MS / device.steps}


def test_the_idle_time_of_a_batch_that_is_loaded_after_a_sync_is_not_the_syncs(tmp_path: Path) -> None:
    def step(line: Timeline) -> None:
        with line.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            line.spend(20_000)
        line.run(GEMM_BF16, 10_000)
        line.read()

    found = measure(Timeline(tmp_path).steps(step).write())

    assert sum(finding.cost_ns or 0 for finding in Rule.of(sync_in_step).run(found)) < 0.1 * MS
