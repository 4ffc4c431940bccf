from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from perfkit.measures.device._idle import CAUSES
from perfkit.measures.device.device_time import measure_device_time
from perfkit.measures.results.device import DeviceTime, Gap
from perfkit.trace import Trace
from perfkit.trace.columns import Metadata

if TYPE_CHECKING:
    from .conftest import TraceBuilder

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
WORKER = "autograd::engine::evaluate_function: MmBackward0"


def measured(trace: Trace) -> DeviceTime:
    (device,) = measure_device_time(trace)
    assert sum(device.causes.values()) == device.idle_ns
    return device


class Planted:
    """Plants idle time of known causes, one after the other: at ``now`` the device is done and the host is free."""

    #: What the host is in, by cause: how an event of the builder is called, and its name.
    HOST = {
        "sync": ("call", "cudaStreamSynchronize"),
        "allocation": ("call", "cudaMalloc"),
        "first use": ("call", "cuModuleLoadData"),
        "data loading": ("range", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        "copy call": ("call", "cudaMemcpyAsync"),
        "launch call": ("call", "cuLaunchKernel"),
        "communication call": ("op", "c10d::allreduce_"),
        "optimizer": ("range", "Optimizer.step#SGD.step"),
        "python": ("frame", "train.py(7): log"),
        "operators": ("op", "aten::mm"),
        "other host work": ("call", "cudaGetDeviceProperties"),
    }

    def __init__(self, build: TraceBuilder) -> None:
        self.build = build
        self.now = 10_000
        self.expected: Counter[str] = Counter()
        build.launch(9_000, 9_000, 10_000)

    def plant(self, cause: str, length: int) -> None:
        build, begin, end = self.build, self.now, self.now + length
        self.expected[cause] += length
        ahead = begin - 500  # a launch at this time was made while the device was busy
        if cause in self.HOST:
            kind, name = self.HOST[cause]
            getattr(build, kind)(name, begin, end)
            build.launch(end, end, end + 1_000)
        elif cause == "uninstrumented":
            build.launch(end, end, end + 1_000)
        elif cause == "launch latency":
            self.expected["uninstrumented"] += 1
            end += 1
            build.launch(begin + 1, end, end + 1_000)
        elif cause == "profiler":
            build.op("aten::mm", begin, end)
            build.add("overhead", "Buffer Flush", begin, end, tid=0, pid=-1)
            build.launch(end, end, end + 1_000)
        elif cause in ("another stream", "collective"):
            build.launch(ahead, begin, begin + 1_000, NCCL if cause == "collective" else "gemm", stream=9)
            build.call("cudaStreamWaitEvent", ahead + 110, ahead + 120)
            end += 1_000
            build.launch(ahead + 200, end, end + 1_000)
        elif cause == "before a graph":
            build.launch(ahead, end, end + 1_000, api="cudaGraphLaunch")
        elif cause == "inside a graph":
            build.launch(ahead, begin, begin + 1_000, api="cudaGraphLaunch")
            end += 1_000
            build.work("gemm", end, end + 1_000, correlation=build.correlation)
        elif cause == "unrecorded graph":
            build.add("cuda_runtime", "cudaGraphLaunch", ahead, ahead + 100, correlation=10**6 + begin)
            build.launch(ahead + 200, end, end + 1_000)
        elif cause == "no launch in the trace":
            build.work("gemm", end, end + 1_000)
        else:
            assert cause in ("dependency", "queued back to back")
            build.launch(ahead, end, end + 1_000)
        self.now = end + 1_000


@pytest.mark.parametrize("seed", range(4))
def test_every_planted_cause_comes_back_to_the_nanosecond(build: TraceBuilder, seed: int) -> None:
    dice = random.Random(seed)
    planted = Planted(build)
    # Only nsys has OS calls, see below; compiling recurs in steps, see test_recompiling.py.
    causes = [cause for cause in CAUSES if cause not in ("OS call", "recompiling")] * 3
    dice.shuffle(causes)

    for cause in causes:
        short = cause == "queued back to back"
        planted.plant(cause, dice.randrange(1, 10_000) if short else dice.randrange(10_000, 200_000))

    assert measured(build.read()).causes == dict(planted.expected)


def test_waits_that_the_device_recorded_name_the_stream_themselves(build: TraceBuilder) -> None:
    build.launch(100, 1_000, 2_000)
    build.add("cuda_sync", "Stream Wait Event", 250, 255, 7, 0, device=0, stream=7)
    build.add("cuda_sync", "Stream Wait Event", 450, 455, 9, 0, device=0, stream=9)
    build.launch(300, 32_000, 33_000)
    build.launch(500, 73_000, 74_000)  # stream 9 had to wait, this is 7

    assert measured(build.read()).causes == {"dependency": 40_000, "another stream": 30_000}


def test_after_an_unrecorded_graph_the_host_is_not_blamed(build: TraceBuilder) -> None:
    build.launch(900, 1_000, 2_000)
    build.op("aten::mm", 2_000, 90_000)
    build.add("cuda_runtime", "cudaGraphLaunch", 12_000, 12_100, correlation=5)
    build.launch(80_000, 80_500, 81_000)

    # What the graph ran for, nobody knows: it may have ended long before the next launch.
    assert measured(build.read()).causes == {"operators": 10_000, "unrecorded graph": 68_500}


def test_between_two_backwards_an_autograd_thread_waits_for_the_main_thread(build: TraceBuilder) -> None:
    build.step(0, 0, 100_000)
    build.launch(0, 0, 2_000)
    build.frame("train.py(3): log", 5_000, 60_000)
    build.op(WORKER, 70_000, 99_000, tid=2)
    build.launch(80_000, 80_000, 100_000, tid=2)

    # The frame, what lies around it, and from 70 us on the node itself.
    assert measured(build.read()).causes == {"python": 55_000, "uninstrumented": 13_000, "operators": 10_000}


def test_calls_of_the_operating_system_are_separate_in_traces_of_nsys(build: TraceBuilder) -> None:
    build.launch(900, 1_000, 2_000)
    build.call("pthread_cond_wait", 2_000, 30_000)
    build.call("cudaMalloc", 30_000, 50_000)
    build.call("ioctl", 31_000, 49_000)  # what the allocation does
    build.launch(50_000, 50_000, 51_000)
    trace = build.read()

    device = measured(dataclasses.replace(trace, metadata=Metadata(format="nsys")))

    assert device.causes == {"OS call": 28_000, "allocation": 20_000}


def test_the_longest_gap_has_step_stream_range_event_and_what_ended_it(build: TraceBuilder) -> None:
    build.step(7, 0, 50_000)
    build.step(8, 50_000, 200_000)
    build.launch(0, 0, 2_000)
    build.range("evaluate", 60_000, 190_000)
    build.frame("train.py(3): log", 61_000, 180_000)
    build.launch(60_500, 60_500, 61_000)
    build.launch(185_000, 185_000, 200_000, "conv", stream=11)

    longest = measured(build.read()).longest[0]

    assert longest == Gap(
        start_ns=61_000,
        duration_ns=124_000,
        cause="python",
        event="train.py(3): log",
        range="evaluate",
        step=8,
        stream=11,
        before="conv",
    )
