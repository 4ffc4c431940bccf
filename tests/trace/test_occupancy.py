from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest

from perfkit.trace import Kind, read_trace
from perfkit.trace.occupancy import MultiprocessorLimits, limits_of, occupancy_percent

#: Of capability 8.0: 64 warps, 32 blocks, 164 KB of shared memory.
A100 = limits_of((8, 0))


@pytest.mark.parametrize(
    ("file", "capability", "multiprocessors"),
    [
        ("a100-2ranks-nccl.json.gz", (8, 0), 108),
        ("v100-2ranks-training.json.gz", (7, 0), 80),
        ("h100-inference-image.json.gz", (9, 0), 132),
    ],
)
def test_it_is_what_kineto_wrote_for_every_kernel_that_kinetos_calculator_takes(
    shared_traces: Path, file: str, capability: tuple[int, int], multiprocessors: int
) -> None:
    trace = read_trace(shared_traces / file)
    limits = limits_of(capability)
    assert limits is not None

    for args in trace.args(np.flatnonzero(trace.is_kind(Kind.KERNEL)).tolist()):
        expected = args["est. achieved occupancy %"]
        ours = occupancy_percent(
            limits,
            threads=prod(args["block"]),
            registers=args["registers per thread"],
            shared_bytes=args["shared memory"],
            blocks_per_multiprocessor=prod(args["grid"]) / multiprocessors,
        )
        # Kineto's refuses more shared memory than a block gets without asking for more, and writes 0.
        assert expected == 0 if args["shared memory"] > 48 << 10 else ours == pytest.approx(expected, abs=1)


def test_each_limit_bounds_it_alone() -> None:
    assert A100 is not None

    def percent(threads: int = 128, registers: int = 16, shared: int = 0, blocks: float = 1000) -> float | None:
        return occupancy_percent(
            A100, threads=threads, registers=registers, shared_bytes=shared, blocks_per_multiprocessor=blocks
        )

    assert percent() == 100  # 16 blocks of 4 warps
    assert percent(threads=32) == 50  # 32 blocks, the most, of one warp
    assert percent(registers=128) == 25  # 16 warps of 128 x 32 registers
    assert percent(shared=80 << 10) == 12.5  # 2 blocks: with 1 KB of the system's 81 of 164 KB each
    assert percent(blocks=0.5) == 3.125  # half a block of 4 of 64 warps


def test_a_block_that_cannot_run_has_none() -> None:
    assert A100 is not None
    broken = MultiprocessorLimits(warps=0, blocks=0, registers=0, shared_bytes=0, capability=(8, 0))

    for limits, threads, shared in ((A100, 0, 0), (A100, 128, 200 << 10), (A100, 4096, 0), (broken, 128, 0)):
        found = occupancy_percent(
            limits, threads=threads, registers=32, shared_bytes=shared, blocks_per_multiprocessor=1.0
        )
        assert found is None
    assert limits_of((3, 5)) is None
    assert limits_of(None) is None
