"""memory-near-limit: a device nearly full is reported with what checkpointing frees and costs; one with room is not."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.measures.results.peak_memory import CheckpointTrade, PeakMemory
from perfkit.rules.memory import memory_near_limit

GB = 1_000_000_000


def test_a_device_nearly_full_is_reported_with_the_cost_of_checkpointing(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), settings={"cuda:0.total_bytes": "16000000000"})

    def at(peak: int) -> Any:
        step = msgspec.structs.replace(build.step(100, forward=30, backward=70), memory_peak_bytes=peak)
        return build.findings(memory_near_limit, step, rank)

    [finding] = at(15_000_000_000)
    assert "for up to 30.0 ms more per step" in finding.advice
    assert finding.severity == "info"
    assert at(12_000_000_000) == []


def peak(device: str, peak_bytes: int, outside: int | None = None) -> PeakMemory:
    return PeakMemory(
        device=device, source="peak-0.pt.trace.json.gz", step=24, peak_bytes=peak_bytes, end_bytes=1,
        phase=None, op=None,
        at=None, holding={}, steps=(), outside_bytes=outside,
    )  # fmt: skip


def trade(device: str, call: str, freed: int) -> CheckpointTrade:
    return CheckpointTrade(
        device=device, call=call, modules=("blocks.0",), peak_bytes=15 * GB, with_bytes=15 * GB - freed,
        forward_share=0.9, added_ns=27_000_000,
    )  # fmt: skip


def test_what_checkpointing_frees_and_adds_is_named_where_it_was_measured(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), settings={"cuda:0.total_bytes": f"{16 * GB}"})
    trades = (
        trade("cuda:0", "checkpoint_sequential(blocks, 2, x)", 2 * GB),
        trade("cuda:0", "checkpoint(block, x) for each of blocks", 5 * GB),
        trade("cpu", "checkpoint(other, x)", 9 * GB),
    )
    (finding,) = build.findings(memory_near_limit, rank, peak("cuda:0", 15 * GB), trades)

    assert (
        "checkpoint(block, x) for each of blocks frees 5.0 GB at the peak for 27.0 ms more per step" in finding.advice
    )
    assert {one.name: one.value for one in finding.evidence}["checkpointing frees"] == 5 * GB


def test_a_training_on_the_cpu_is_near_the_machines_limit_with_the_rest_of_the_process(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), devices=(), settings={"memory_bytes": f"{16 * GB}"})

    (finding,) = build.findings(memory_near_limit, rank, peak("cpu", 13 * GB, outside=2 * GB))
    assert "15 GB of the machine's 16 GB" in finding.message
    assert build.findings(memory_near_limit, rank, peak("cpu", 11 * GB, outside=2 * GB)) == []
