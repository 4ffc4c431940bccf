"""The device's memory is nearly full.

Problem: above nine tenths the allocator has to search, split and release blocks, a slightly longer batch ends the run,
and the batch size cannot be raised.

How it shows: the peak of reserved memory, or else of allocated memory, reaches 90% of the device's memory; for a
training on the CPU what its tensors and the rest of the process hold, 90% of the machine's.

Causes: a batch sized to just fit; activations of a deep model; optimizer state in 32 bits; a leak (memory-growth).

Fix: trade time for memory, or use less of it. After `perfkit run --memory` the finding names what to checkpoint, what
that frees at the peak, and what it adds to the step; `perfkit explain memory` says how that is measured.

    from torch.utils.checkpoint import checkpoint, checkpoint_sequential
    x = checkpoint(block, x, use_reentrant=False)     # a third more computing, a fraction of the activations
    x = checkpoint_sequential(blocks, 4, x, use_reentrant=False)    # in four segments, the last one as it is

    with torch.autocast("cuda", dtype=torch.bfloat16): ...   # half the activations
    optimizer.zero_grad()                                    # set_to_none=True

Saving: no time. Activation checkpointing runs the forward pass a second time; the finding shows what that costs, as far
as the forward was measured. The result is free memory: for a larger batch, or against running out of memory.

Source: 90% leaves what the allocator's blocks of 2 and 20 MiB and the libraries' workspaces need on a device of 16 GB.
Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfkit._format import ms, percent, size
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.memory import DeviceMemory
from perfkit.measures.results.peak_memory import CheckpointTrade, PeakMemory
from perfkit.rules._settings import number
from perfkit.run.records import Rank

ID = "memory-near-limit"

#: The share of the device's memory from which on it is nearly full (chosen, see above).
_FULL = 0.9


def check(
    rank: Rank,
    step: StepBudget | None = None,
    device_memory: tuple[DeviceMemory, ...] = (),
    peaks: tuple[PeakMemory, ...] = (),
    trades: tuple[CheckpointTrade, ...] = (),
) -> Iterator[Finding]:
    """Find a device whose memory is nearly full, and what checkpointing would free and cost in time."""
    use = _device_use(rank, step, device_memory, peaks) or _host_use(rank, peaks)
    if use is None or use.peak < _FULL * use.total:
        return
    forward = step.phase("forward") if step is not None else None
    forward_ns = forward.ns if forward is not None else None
    mine = [trade for trade in trades if trade.device == use.device]
    best = max(mine, key=lambda trade: trade.freed_bytes, default=None)
    if best is not None:
        added = f" for {ms(best.added_ns)} more per step" if best.added_ns is not None else ""
        how = f"{best.call} frees {size(best.freed_bytes)} at the peak{added}; or"
        evidence: tuple[Evidence, ...] = (
            Evidence("checkpointing frees", best.freed_bytes, "bytes", best.call),
            Evidence.ms("checkpointing adds per step", best.added_ns, "the forward of what is computed again"),
        )
    else:
        cost = f", for up to {ms(forward_ns)} more per step" if forward_ns is not None else ""
        how = f"activation checkpointing of the largest blocks{cost},"
        basis = "one more forward" if forward_ns is not None else "the forward was not measured"
        evidence = (Evidence.ms("checkpointing costs per step, at most", forward_ns, basis),)
    whose = "machine" if use.device == "cpu" else "device"
    yield Finding(
        severity="info",
        message=f"{size(use.peak)} of the {whose}'s {size(use.total)} are in use at the peak"
        f" ({percent(use.peak, use.total)}).",
        advice=f"Free memory: {how} bfloat16, or a smaller batch.",
        confidence="high",
        evidence=(
            Evidence("peak", use.peak, "bytes", use.source),
            Evidence(
                f"memory of the {whose}", use.total, "bytes", "device properties" if whose == "device" else "/proc"
            ),
            *evidence,
        ),
    )


class _Use(NamedTuple):
    """Memory of a device, or of the machine, that is in use at the peak, and how much there is."""

    device: str
    peak: int
    total: int
    source: str


def _device_use(
    rank: Rank, step: StepBudget | None, device_memory: tuple[DeviceMemory, ...], peaks: tuple[PeakMemory, ...]
) -> _Use | None:
    total = number(rank, "cuda:0.total_bytes")
    if total is None:
        return None
    found = [
        (memory.reserved_peak_bytes or memory.peak_bytes, f"trace, {memory.device}")
        for memory in device_memory
        if memory.device == "cuda:0" and memory.is_absolute
    ]
    found += [
        (memory.peak_bytes, f"step {memory.step}, {memory.source}") for memory in peaks if memory.device == "cuda:0"
    ]
    if step is not None and step.typical is not None and step.typical.memory_peak_bytes is not None:
        found.append((step.typical.memory_peak_bytes, "the allocator's own peak, the whole run"))
    peak, source = max(found, default=(0, ""))
    return _Use("cuda:0", peak, total, source)


def _host_use(rank: Rank, peaks: tuple[PeakMemory, ...]) -> _Use | None:
    """What a training on the CPU uses; None where it trains on a device."""
    total = number(rank, "memory_bytes")
    memory = next((one for one in peaks if one.device == "cpu"), None)
    if rank.devices or total is None or memory is None or memory.outside_bytes is None:
        return None
    return _Use("cpu", memory.peak_bytes + memory.outside_bytes, total, f"step {memory.step}, {memory.source}")
