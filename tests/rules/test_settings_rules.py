"""Settings that cost time: told with the line that makes them, and with a price only where one was measured."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.host import Ops, OpTime
from perfkit.measures.results.kernels import Kernels, KernelTime
from perfkit.rules.memory import grad_in_evaluation
from perfkit.rules.settings import (
    anomaly_detection,
    cudnn_benchmark_off,
    deterministic_mode,
    launch_blocking,
    thread_counts,
)
from perfkit.run.records import Rank

MS = 1_000_000
AT = Location(file="train.py", line=7, function="main")


def rank(build: Any, **facts: Any) -> Rank:
    settings = facts.pop("settings", {})
    base = build.rank(cpus=facts.pop("cpus", 8), threads=facts.pop("threads", 1))
    return msgspec.structs.replace(base, settings=base.settings | settings, **facts)


def ops(*rows: tuple[str, int, float, float], steps: int = 2) -> Ops:
    """Ops from (name, count, total ms, own ms)."""
    times = tuple(
        OpTime(name=name, count=count, total_ns=round(total * MS), self_ns=round(own * MS))
        for name, count, total, own in rows
    )
    return Ops(steps=steps, count=1, wall_ns=1, rows=times, floor_ns=None)


NODES = "autograd::engine::evaluate_function: AddBackward0"


def test_anomaly_detection_costs_its_looks_for_nan_and_a_stack_for_each_node(build: Any) -> None:
    on = {"torch.anomaly_enabled": "True", "anomaly.stack_ns": "100000"}
    measured = build.measured(
        step=build.step(100, forward=100),
        rank=rank(build, settings=on, calls={"set_detect_anomaly": (AT,)}),
        ops=ops((NODES, 400, 8, 1), ("aten::isnan", 400, 6, 6), ("aten::_is_any_true", 400, 4, 4)),
    )

    [finding] = anomaly_detection.check(measured)

    # Per step: 5 ms of looks, and 200 nodes at 0.1 ms, 0.7 to 1.3 times that.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (19 * MS, 31 * MS)
    assert (finding.file, finding.line, finding.severity) == ("train.py", 7, "critical")


def test_anomaly_detection_that_fills_the_step_leaves_some_of_it_to_training(build: Any) -> None:
    on = {"torch.anomaly_enabled": "True", "anomaly.stack_ns": "1000000"}
    measured = build.measured(
        step=build.step(100, forward=100), rank=rank(build, settings=on), ops=ops((NODES, 400, 8, 1))
    )

    [finding] = anomaly_detection.check(measured)

    # 200 nodes at 1 ms are twice the step.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (80 * MS, 100 * MS)


def test_anomaly_detection_without_a_trace_is_told_without_a_price(build: Any) -> None:
    on = rank(build, settings={"torch.anomaly_enabled": "True"})

    [finding] = anomaly_detection.check(build.measured(step=build.step(100, forward=100), rank=on))

    assert (finding.severity, finding.cost_ns) == ("warning", None)
    assert "no trace" in finding.evidence[0].source


def test_a_recording_does_not_make_deterministic_mode_dearer_than_it_is(build: Any) -> None:
    measured = build.measured(
        step=build.step(50, forward=50),
        trace_step=build.step(100, forward=100),
        rank=rank(build, settings={"torch.deterministic": "True"}, calls={"use_deterministic_algorithms": (AT,)}),
        ops=ops(("aten::empty", 10, 82, 2), ("aten::fill_", 40, 90, 90)),
    )

    [finding] = deterministic_mode.check(measured)

    # 80 ms in two steps of the trace, which took twice as long as others.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (15 * MS, 25.3 * MS)
    assert finding.line == 7
    assert finding.evidence[1].value is None


def test_deterministic_mode_that_fills_nothing_is_for_information(build: Any) -> None:
    on = rank(build, settings={"torch.deterministic": "True"})
    measured = build.measured(step=build.step(50, forward=50), rank=on, ops=ops(("aten::empty", 10, 2, 2)))

    assert [finding.severity for finding in deterministic_mode.check(measured)] == ["info"]


def test_threads_beyond_the_cpus_cost_what_was_measured_for_each_split_operation(build: Any) -> None:
    many = rank(build, cpus=2, threads=16, settings={"threads.beyond_ns": "100000"}, calls={"set_num_threads": (AT,)})
    measured = build.measured(
        step=build.step(40, forward=40), rank=many, ops=ops(("aten::mm", 100, 60, 60), ("aten::t", 500, 1, 1))
    )

    [finding] = thread_counts.check(measured)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (round(3.5 * MS), 7 * MS)
    assert finding.advice.startswith("torch.set_num_threads(2)")
    assert finding.line == 7


@pytest.mark.parametrize(
    ("cpus", "threads", "local", "told"), [(2, 2, "1", 0), (8, 4, "2", 0), (8, 8, "2", 1), (1, 1, "4", 0)]
)
def test_threads_are_counted_over_the_ranks_of_a_machine(
    cpus: int, threads: int, local: str, told: int, build: Any
) -> None:
    of = rank(build, cpus=cpus, threads=threads, settings={"LOCAL_WORLD_SIZE": local})

    assert len(list(thread_counts.check(build.measured(step=build.step(40, forward=40), rank=of)))) == told


def test_threads_of_a_run_on_a_device_are_not_its_problem(build: Any) -> None:
    of = rank(build, cpus=2, threads=16, devices=("A100",))

    assert list(thread_counts.check(build.measured(step=build.step(40, forward=40), rank=of))) == []


def test_blocking_launches_cost_at_most_the_idle_time_that_is_not_for_data(build: Any) -> None:
    device = build.device(1000, compute=500, causes={"data loading": 100, "operators": 400})
    blocking = rank(build, devices=("A100",), settings={"CUDA_LAUNCH_BLOCKING": "1"})
    measured = build.measured(step=build.step(100, forward=100), devices=(device,), rank=blocking)

    [finding] = launch_blocking.check(measured)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (0, 40 * MS)
    off = rank(build, devices=("A100",), settings={"CUDA_LAUNCH_BLOCKING": "0"})
    assert list(launch_blocking.check(build.measured(step=measured.step, devices=(device,), rank=off))) == []
    assert list(launch_blocking.check(build.measured(step=measured.step, rank=rank(build)))) == []


def test_untuned_convolutions_of_one_size_are_told_for_information(build: Any) -> None:
    device = build.device(1000, compute=900, causes={"operators": 100})
    kernel = KernelTime(
        name="conv", count=1, total_ns=1, mean_ns=1, deviation_ns=0, min_ns=1, max_ns=1, kernel_class="convolution"
    )
    kernels = Kernels(
        total_ns=900 * MS, rows=(kernel,), copies=(), classes_ns={"convolution": 800 * MS}, precisions_ns={},
        product_ns=0, tensor_core_ns=0, tensor_core_unknown_ns=0,
    )  # fmt: skip
    parts = {"step": build.step(100, forward=100), "devices": (device,), "kernels": kernels}
    off = rank(build, devices=("A100",), settings={"cudnn.benchmark": "False"})
    on = rank(build, devices=("A100",), settings={"cudnn.benchmark": "True"})

    [finding] = cudnn_benchmark_off.check(build.measured(rank=off, **parts))

    assert (finding.severity, finding.saving_low_ns, finding.saving_high_ns) == ("info", 0, 20 * MS)
    assert list(cudnn_benchmark_off.check(build.measured(rank=on, **parts))) == []


def test_an_evaluation_with_gradients_is_told_at_its_line_and_without_a_price(build: Any) -> None:
    [finding] = grad_in_evaluation.check(build.measured(rank=rank(build, evaluated_with_grad=AT)))

    assert (finding.file, finding.line, finding.cost_ns) == ("train.py", 7, None)
    assert list(grad_in_evaluation.check(build.measured(rank=rank(build)))) == []
