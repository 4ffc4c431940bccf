"""How much of a multiprocessor a kernel can occupy, from its launch and the device's limits.

The rules are those of NVIDIA's occupancy calculator for devices of capability 5.0 and later: warps get registers in
units of 256 within each of four partitions, blocks get shared memory in units that depend on the device.
"""

from __future__ import annotations

import msgspec

REGISTER_UNIT = 256
PARTITIONS = 4


class MultiprocessorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum that one multiprocessor of a device can hold at once."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    capability: tuple[int, int]
    warp_size: int = 32


#: Capability -> warps, blocks and KB of shared memory of one multiprocessor, from the table "Technical Specifications
#: per Compute Capability" of the CUDA C++ Programming Guide (13.0); all have 65,536 registers.
BY_CAPABILITY = {
    (7, 0): (64, 32, 96),
    (7, 5): (32, 16, 64),
    (8, 0): (64, 32, 164),
    (8, 6): (48, 16, 100),
    (8, 7): (48, 16, 164),
    (8, 9): (48, 24, 100),
    (9, 0): (64, 32, 228),
    (10, 0): (64, 32, 228),
    (12, 0): (48, 24, 100),
}


def limits_of(capability: tuple[int, int] | None) -> MultiprocessorLimits | None:
    """The limits of devices of this compute capability; None if it is not in the table."""
    if capability not in BY_CAPABILITY:
        return None
    warps, blocks, shared = BY_CAPABILITY[capability]
    return MultiprocessorLimits(
        warps=warps, blocks=blocks, registers=65_536, shared_bytes=shared << 10, capability=capability
    )


def occupancy_percent(
    limits: MultiprocessorLimits, *, threads: int, registers: int, shared_bytes: int, blocks_per_multiprocessor: float
) -> float | None:
    """Warps that a kernel keeps on a multiprocessor, as a percentage of the maximum.

    Kineto's "est. achieved occupancy %": limited by registers, shared memory and slots, and by the number of
    blocks that the grid has for each multiprocessor. None for a block that cannot run on the device.

    Args:
        limits: Limits of the device.
        threads: Threads per block.
        registers: Registers per thread.
        shared_bytes: Static and dynamic shared memory per block.
        blocks_per_multiprocessor: Blocks of the grid / multiprocessors of the device.
    """
    if threads <= 0 or limits.warps <= 0 or limits.warp_size <= 0:
        return None
    warps = -(-threads // limits.warp_size)
    fitting = min(limits.blocks, limits.warps // warps)
    if registers > 0:
        of_warp = _rounded_up(registers * limits.warp_size, REGISTER_UNIT)
        fitting = min(fitting, limits.registers // PARTITIONS // of_warp * PARTITIONS // warps)
    # From 8.0 on the system reserves 1 KB per block.
    reserved, unit = (1024, 128) if limits.capability >= (8, 0) else (0, 256)
    if shared := _rounded_up(shared_bytes + reserved, unit):
        fitting = min(fitting, limits.shared_bytes // shared)
    if fitting <= 0:
        return None
    return min(fitting, blocks_per_multiprocessor) * threads / (limits.warps * limits.warp_size) * 100


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
