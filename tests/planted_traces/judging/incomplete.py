"""Traces written after the ledger stood, of recordings that lack a part: no verdict is possible on any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trace_chips import A100, FP16, H100, RTX, V100
from trace_machine import Machine
from trace_programs import Images, Transformer
from trace_timeline import Timeline

Event = dict[str, Any]
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def keep(line: Timeline, test: Callable[[Event], bool]) -> None:
    line.events = [event for event in line.events if test(event)]


def on_device(event: Event) -> bool:
    return event.get("cat") in DEVICE


def steps_of(line: Timeline) -> list[Event]:
    return [
        event
        for event in line.events
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep")
    ]


def ddp(line: Timeline, *, steps: int = 6) -> Machine:
    """Two A100 nodes' worth of ranks, which reduce under the backward."""
    m = Machine(line, A100, ranks=16, seed=61)
    model = Transformer(m, layers=6, width=2048, batch=4, length=1024, compiled=False)
    for _ in range(steps):
        with m.step():
            m.to_device(4 * 1024 * 8, dims=[4, 1024], dtype="long int")
            model.forward()
            model.backward(bucket=lambda: m.all_reduce(12 * 2048**2, dtype="BFloat16"))
            m.join(20)
            model.update()
            m.item()
    m.finish()
    return m


def products_lost(line: Timeline) -> None:
    """Not one kernel of the library for products: its launches stand there alone."""
    ddp(line)
    keep(line, lambda event: not (event.get("cat") == "kernel" and "gemm" in event["name"]))


def later_steps_without_kernels(line: Timeline) -> None:
    """CUPTI's buffers were full after half of the steps."""
    ddp(line)
    steps = steps_of(line)
    limit = steps[len(steps) // 2]["ts"]
    launched = {
        event["args"]["correlation"]
        for event in line.events
        if event.get("cat") == "cuda_runtime" and event["ts"] > limit and "correlation" in event["args"]
    }
    keep(line, lambda event: not (on_device(event) and event["args"]["correlation"] in launched))


def communication_alone(line: Timeline) -> None:
    """The kernels of communication, and no others."""
    ddp(line)
    keep(line, lambda event: not on_device(event) or "nccl" in event["name"])


def copies_lost(line: Timeline) -> None:
    """The calls that copy are recorded, the copies are not: the data's way to the device cannot be judged."""
    m = Machine(line, RTX, seed=62)
    model = Images(m, batch=256, compiled=False)
    for _ in range(6):
        with m.step():
            for _ in range(8):
                m.to_device(32 * 3 * 224 * 224 * 4, pinned=False, dims=[32, 3, 224, 224])
            model.train()
            m.item()
    m.finish()
    keep(line, lambda event: event.get("cat") != "gpu_memcpy")


def correlations_used_again(line: Timeline) -> None:
    """A tool that numbered anew began with one again and again: calls and kernels cannot be paired."""
    ddp(line)
    for event in line.events:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] = 1 + event["args"]["correlation"] % 401


def first_ten_thousand_of_the_device(line: Timeline) -> None:
    """A tool kept 10,000 events of the device and all of the host."""
    m = Machine(line, H100, seed=63)
    model = Transformer(m, layers=24, width=1024, batch=8, length=512, compiled=False)
    for _ in range(24):
        with m.step():
            model.train()
    m.finish()
    kept = {id(event) for event in [event for event in line.events if on_device(event)][:10_000]}
    keep(line, lambda event: not on_device(event) or id(event) in kept)


def two_steps_cut_out(line: Timeline) -> None:
    """Steps 3 and 4 of eight are missing with all that ran in them, on the host and the device."""
    ddp(line, steps=8)
    steps = steps_of(line)
    begin, end = steps[3]["ts"], steps[5]["ts"]
    keep(
        line, lambda event: not (event.get("ph") == "X" and event.get("cat") != "Trace" and begin <= event["ts"] < end)
    )


def nothing_but_the_header(line: Timeline) -> None:
    """The schedule never became active: the device's properties, names of processes, the window, no event in it."""
    m = Machine(line, A100, seed=64)
    m.finish()
    keep(line, lambda event: event["ph"] != "X" or event["cat"] == "Trace")


def second_device_unrecorded(line: Timeline) -> None:
    """Half of the layers run on a second device, of which no event was recorded."""
    m = Machine(line, V100, devices=2, seed=65)
    model = Transformer(m, layers=3, width=2048, batch=8, length=512, dtype=FP16, compiled=False)
    for _ in range(6):
        with m.step():
            for device in (0, 1):
                m.device = device
                model.forward()
            with m.backward():
                for device in (1, 0):
                    m.device = device
                    for _ in range(3):
                        model.block_backward()
            m.item()
    m.finish()
    keep(line, lambda event: not (on_device(event) and event["args"]["device"] == 1))


def buffers_dropped(line: Timeline) -> None:
    """Two buffers of records were dropped: runs of kernels one after the other are missing in the middle."""
    ddp(line, steps=8)
    work = [event for event in line.events if on_device(event)]
    count = len(work)
    lost = {id(event) for part in (0.3, 0.7) for event in work[int(part * count) : int((part + 0.12) * count)]}
    keep(line, lambda event: id(event) not in lost)


def kernels_at_time_zero(line: Timeline) -> None:
    """As older profilers wrote kernels whose times were lost: they begin at 0 and last 0."""
    ddp(line)
    for number, event in enumerate([event for event in line.events if event.get("cat") == "kernel"]):
        if number % 5 == 2:
            event["ts"] = event["dur"] = 0.0
