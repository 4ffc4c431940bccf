"""The device's memory is nearly full.

Problem: above nine tenths the allocator has to search, split and give back blocks, a slightly longer batch ends
the run, and nothing is left to make the batch larger.

How it shows: the peak of what was reserved, or else allocated, reaches 90% of the device's memory.

Causes: a batch sized to just fit; activations of a deep model; optimizer state in 32 bits; a leak (memory-growth).

Fix: trade time for memory, or use less of it.

    from torch.utils.checkpoint import checkpoint
    x = checkpoint(block, x, use_reentrant=False)     # a third more computing, a fraction of the activations

    with torch.autocast("cuda", dtype=torch.bfloat16): ...   # half the activations
    optimizer.zero_grad()                                    # set_to_none=True

Gain: none in time: activation checkpointing runs the forward a second time, and that price is told, as far as the
forward was measured. What it gives is room: for a larger batch, or against the end of the run.

Source: 90% leaves what the allocator's blocks of 2 and 20 MiB and the libraries' workspaces need on a device of
16 GB. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent, size
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._settings import number
from perfkit.rules._step_budget import phase_part, whole_of

ID = "memory-near-limit"

_FULL = 0.9


def check(measured: Measured) -> Iterator[Finding]:
    """Find a device whose memory is nearly full, and what checkpointing would cost in time."""
    total = number(measured.rank, "cuda:0.total_bytes") if measured.rank is not None else None
    if total is None:
        return
    peaks = [
        (memory.reserved_peak_bytes or memory.peak_bytes, f"trace, {memory.device}")
        for memory in measured.memory
        if memory.device == "cuda:0" and memory.is_absolute
    ]
    if measured.step is not None and measured.step.memory_peak_bytes is not None:
        peaks.append((measured.step.memory_peak_bytes, "the allocator's own peak, the whole run"))
    peak, source = max(peaks, default=(0, ""))
    if peak < _FULL * total:
        return
    whole = whole_of(measured)
    forward = phase_part(measured, "forward", whole) if whole is not None else None
    evidence = [
        Evidence("peak", peak, "bytes", source),
        Evidence("memory of the device", total, "bytes", "device properties"),
        Evidence(
            "checkpointing costs at most",
            round(forward.ns / 1e6, 3) if forward is not None else None,
            "ms per step",
            "one more forward" if forward is not None else "the forward was not measured",
        ),
    ]
    price = f", for up to {ms(forward.ns)} more per step" if forward is not None else ""
    yield Finding(
        rule=ID,
        severity="info",
        message=f"{size(peak)} of the device's {size(total)} are in use at the peak ({percent(peak, total)}).",
        advice=f"Make room: activation checkpointing of the largest blocks{price}, bfloat16, or a smaller batch.",
        confidence="high",
        evidence=tuple(evidence),
    )
