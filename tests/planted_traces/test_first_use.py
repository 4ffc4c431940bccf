"""Loading, making handles, compiling and searching for algorithms are first use, and no late launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_timeline import GEMM_BF16, Timeline

from perfkit.measures.device.device_time import measure_device_time
from perfkit.measures.results.device import DeviceTime
from perfkit.trace import read_trace

MS = 1_000_000


def measured(line: Timeline) -> DeviceTime:
    [device] = measure_device_time(read_trace(line.write(), processes=1))
    assert sum(one.ns for one in device.idle) == device.idle_ns
    return device


def products(line: Timeline, count: int = 30) -> None:
    """Kernels of 3 us, launched every 20 us: the device waits for each."""
    for _ in range(count):
        line.run(GEMM_BF16, 3, host=20)


def conv(line: Timeline) -> None:
    with line.range("aten::cudnn_convolution", "cpu_op"):
        line.wait("cudaEventSynchronize")
        line.call("cudaMalloc", 30_000)


@pytest.mark.parametrize(
    "once",
    [
        lambda line: line.call("cuModuleLoadData", 30_000),
        lambda line: line.call("cudaGetKernel", 30_000),
        lambda line: line.call("cuLibraryLoadData", 30_000),
        lambda line: line.call("cublasCreate_v2", 30_000),
        lambda line: line.op("CachingAutotuner.benchmark_all_configs (dynamo_timed)", 30_000),
        lambda line: line.op("aten::addmm", 30_000),
        lambda line: line.run("another_kernel", 3, host=30_000),
        conv,
    ],
    ids=["module", "kernel", "library", "handle", "autotuning", "an op, once", "a first launch", "cudnn.benchmark"],
)
def test_what_is_done_once_is_first_use(once: object, tmp_path: Path) -> None:
    def step(line: Timeline) -> None:
        products(line)
        if line.number == 0:
            once(line)  # type: ignore[operator]
        products(line)

    device = measured(Timeline(tmp_path).steps(step))

    assert device.causes["first use"] == pytest.approx(30 * MS, rel=0.01)
    assert sum(one.gaps for one in device.idle if one.cause == "first use") <= 2
    assert device.late_gaps > 200


def test_what_every_step_does_is_not_first_use(tmp_path: Path) -> None:
    def step(line: Timeline) -> None:
        products(line)
        line.op("aten::addmm", 3_000)
        line.run("another_kernel", 3, host=3_000)

    assert "first use" not in measured(Timeline(tmp_path).steps(step)).causes


def test_code_that_the_profiler_saw_being_loaded_is_first_use_and_not_the_profilers(tmp_path: Path) -> None:
    def step(line: Timeline) -> None:
        products(line)
        start = line.now
        line.run(GEMM_BF16, 3, host=5_000)
        line.add("overhead", "Lazy Function Loading", start + 500, start + 4_000, tid=0, pid=-1)

    causes = measured(Timeline(tmp_path).steps(step)).causes

    assert causes["first use"] == 5 * 3_500_000
    assert "profiler" not in causes


def test_idle_time_has_the_function_that_the_host_was_in(tmp_path: Path) -> None:
    def step(line: Timeline) -> None:
        for _ in range(10):
            line.run(GEMM_BF16, 3)
            with line.frame("mix", 31):
                line.spend(1_000)

    [longest, *_] = measured(Timeline(tmp_path).steps(step)).idle

    assert (longest.cause, longest.gaps) == ("python", 50)
    assert longest.at is not None
    assert (longest.at.file, longest.at.line, longest.at.function) == ("train.py", 31, "mix")
