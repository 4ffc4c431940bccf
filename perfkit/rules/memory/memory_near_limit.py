"""The device's memory is nearly full.

Problem: above nine tenths the allocator has to search, split and release blocks, a slightly longer batch ends the run,
and the batch size cannot be raised.

How it shows: the peak of reserved memory, or else of allocated memory, reaches 90% of the device's memory.

Causes: a batch sized to just fit; activations of a deep model; optimizer state in 32 bits; a leak (memory-growth).

Fix: trade time for memory, or use less of it.

    from torch.utils.checkpoint import checkpoint
    x = checkpoint(block, x, use_reentrant=False)     # a third more computing, a fraction of the activations

    with torch.autocast("cuda", dtype=torch.bfloat16): ...   # half the activations
    optimizer.zero_grad()                                    # set_to_none=True

Saving: no time. Activation checkpointing runs the forward pass a second time; the finding shows what that costs, as far
as the forward was measured. The result is free memory: for a larger batch, or against running out of memory.

Source: 90% leaves what the allocator's blocks of 2 and 20 MiB and the libraries' workspaces need on a device of 16 GB.
Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent, size
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.memory import DeviceMemory
from perfkit.rules._settings import number
from perfkit.run.records import Rank

ID = "memory-near-limit"

#: The share of the device's memory from which on it is nearly full (chosen, see above).
_FULL = 0.9


def check(
    rank: Rank, step: StepBudget | None = None, device_memory: tuple[DeviceMemory, ...] = ()
) -> Iterator[Finding]:
    """Find a device whose memory is nearly full, and what checkpointing would cost in time."""
    total = number(rank, "cuda:0.total_bytes")
    if total is None:
        return
    peaks = [
        (memory.reserved_peak_bytes or memory.peak_bytes, f"trace, {memory.device}")
        for memory in device_memory
        if memory.device == "cuda:0" and memory.is_absolute
    ]
    if step is not None and step.typical is not None and step.typical.memory_peak_bytes is not None:
        peaks.append((step.typical.memory_peak_bytes, "the allocator's own peak, the whole run"))
    peak, source = max(peaks, default=(0, ""))
    if peak < _FULL * total:
        return
    forward = step.phase("forward") if step is not None else None
    forward_ns = forward.ns if forward is not None else None
    cost = f", for up to {ms(forward_ns)} more per step" if forward_ns is not None else ""
    basis = "one more forward" if forward_ns is not None else "the forward was not measured"
    yield Finding(
        severity="info",
        message=f"{size(peak)} of the device's {size(total)} are in use at the peak ({percent(peak, total)}).",
        advice=f"Free memory: activation checkpointing of the largest blocks{cost}, bfloat16, or a smaller batch.",
        confidence="high",
        evidence=(
            Evidence("peak", peak, "bytes", source),
            Evidence("memory of the device", total, "bytes", "device properties"),
            Evidence.ms("checkpointing costs per step, at most", forward_ns, basis),
        ),
    )
