"""A loop in Python calls the same few small operations again and again.

Problem: an operation costs a few microseconds of dispatch, allocation and autograd bookkeeping (and a
kernel launch on a GPU) before it computes anything. A loop over rows, time steps or samples pays that
in every iteration, and once more in the backward pass.

How it shows: in the trace the same sequence of ops repeats at least 10 times in a step, and an op takes
no more than 20 times the overhead floor on average, which is the trace's own, and at least 2 µs.

Causes: looping over the batch or the sequence where one batched call exists; indexing element by
element; writing attention, softmax or a norm by hand.

Fix: one call over the whole tensor.

    scores = query @ keys.transpose(-2, -1)         # not: for i in range(n): s[i] = (query[i] * keys[i]).sum()

    y = F.layer_norm(x, x.shape[-1:])               # not: (x - mean) / std, op by op
    y = torch.cumsum(x, dim=1)                      # not: for t in range(T): total = total + x[:, t]

Where the iterations depend on each other: torch.compile, an RNN module, or a scan.

Gain: a loop of n iterations becomes one pass over the same ops, so (host + backward) x (1 - 1/n) goes: host
is the time from the loop's first op to its last, the Python between them included; backward is the time of
the same ops' backward nodes. From it comes off the computing that stays: nothing at the high end, where on
a CPU 15% are added for what else gets faster (caches, the allocator); at the low end what the ops cost
above the overhead floor, 1 - ops x floor / op_time, but no more than 30%. Times of the trace are counted by
their share of its step. On a GPU the gain is no more than the device's idle time and the loop's own device
time.

A body that holds layers with parameters (linear, convolution, norm, embedding, recurrent) loops over a
model's layers, or over samples: that one is told by `loop-over-samples`, which sees the modules called. One
that exchanges with other processes waits for them more than for its ops: `exposed-communication` tells it.

Source: 10 repeats is the number torch's own ForLoopIndexing pattern asks for. The floor and the 20 were
calibrated on a CPU with the profiler on: eight common ops on one element take 2.2 µs on average, a
multiplication of 4,096 numbers 5 µs, a loop over the rows of a small attention 13 µs per op (20 µs while
another program used the processor), and a batched product of 32 x 64 x 32, which is computing, 110 µs. That
is one machine and one loop (of `perfkit demo`), so the demo does not prove the threshold. What stays was
measured on six loops of 16 to 128 rounds against one call (attention by position, a product, a running sum,
look-ups, a norm; forward and backward, one thread): 3 to 7%; 30% leaves room for larger rows. From 5% of
the step on (see input-bound). The GPU side: not run on a GPU yet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.host import Repeat
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import (
    NEGLIGIBLE,
    Whole,
    busiest_device,
    device_part,
    severity_of,
    trace_scale,
    whole_of,
    with_beyond,
)
from perfkit.run.records import TracedLine

ID = "many-small-ops"

_REPEATS = 10
#: An op is small up to this many times the overhead floor (calibration: see above).
_SMALL = 20
#: What an op costs at least in a trace (calibration: see above); a trace's own floor is its cheapest ops,
#: among them views and ops inside ops, which no call in a loop is as cheap as.
_FLOOR_NS = 2_000
#: Ops that hold parameters of their own.
_LAYER = re.compile(r"^aten::(linear|addmm|conv|_conv|\w+_norm|embedding|lstm|gru|rnn)")
#: Collectives: the time of such a loop is the other processes' and the link's.
_COLLECTIVE = re.compile(r"^(c10d|_c10d_functional)::")
#: The share of such a loop's time that is still there after the correction is at most this (calibration: see above).
_STAYS = 0.3
#: And at least this: one call has a floor too, and times of a trace are off by some percent (calibration: see above).
_LEAST_STAYS = 0.15
#: A loop belongs to a repeat if its busiest line ran as often, within this factor: the first and last rounds of
#: a loop often look different in the trace, and a body may hold one branch of two.
_ROUNDS_APART = 1.5


def check(measured: Measured) -> Iterator[Finding]:
    """Find repeated small ops, the user's loop that makes them, and what one pass would leave."""
    whole = whole_of(measured)
    ops = measured.ops
    if whole is None or ops is None:
        return
    floor_ns = max(ops.floor_ns or 0, _FLOOR_NS)
    loops = _loops(measured)
    for repeat in sorted(ops.repeats, key=lambda repeat: -repeat.host_ns):
        if any(_LAYER.search(name) or _COLLECTIVE.search(name) for name in repeat.names):
            continue
        if repeat.iterations < _REPEATS or repeat.op_ns > repeat.ops * _SMALL * floor_ns:
            continue
        low_ns, cost_ns = _gain(repeat, floor_ns, measured, whole)
        if cost_ns < NEGLIGIBLE * whole.wall_ns:
            continue
        high_ns = with_beyond(cost_ns, measured, whole)
        loop = _loop_of(repeat, loops)
        if loop is not None:
            loops.remove(loop)
            if loop[0].phase == "data":
                continue  # its time is in the data phase, which input-bound tells
        yield _finding(repeat, f"trace, {ops.steps} steps", floor_ns, loop, (low_ns, cost_ns, high_ns), whole)


def _gain(repeat: Repeat, floor_ns: int, measured: Measured, whole: Whole) -> tuple[int, int]:
    scale = trace_scale(measured)
    backward_ns = repeat.backward_ns or 0
    gone = (repeat.host_ns + backward_ns) * (1 - 1 / repeat.iterations) * scale
    computing = max(0.0, 1 - repeat.ops * floor_ns / repeat.op_ns) if repeat.op_ns else 0.0
    stays = min(max(computing, _LEAST_STAYS), _STAYS) * gone
    most: float = whole.wall_ns
    device = busiest_device(measured)
    if device is not None:
        idle_ns = max(0, device.idle_ns - device.causes.get("data loading", 0))
        most = min(most, device_part(idle_ns, device, whole) + (repeat.device_ns or 0) * scale)
    cost_ns = min(gone, most)
    return round(max(0.0, min(gone - stays, cost_ns))), round(cost_ns)


def _loops(measured: Measured) -> list[list[TracedLine]]:
    """The user's loops in the step that was traced by line, each with its lines."""
    loops: dict[tuple[str, str, int], list[TracedLine]] = {}
    for row in measured.lines.traced if measured.lines is not None else ():
        if row.owner == "user" and row.loop_line is not None:
            loops.setdefault((row.file, row.function, row.loop_line), []).append(row)
    return list(loops.values())


def _loop_of(repeat: Repeat, loops: list[list[TracedLine]]) -> list[TracedLine] | None:
    """The loop that went round as often as the ops repeat; of several such, the one that took longest."""

    def rounds(loop: list[TracedLine]) -> int:
        return max(row.runs for row in loop)

    def apart(loop: list[TracedLine]) -> float:
        return abs(math.log(rounds(loop) / repeat.iterations))

    able = [loop for loop in loops if rounds(loop) and apart(loop) <= math.log(_ROUNDS_APART)]
    return max(able, key=lambda loop: sum(row.host_ns for row in loop), default=None)


def _finding(
    repeat: Repeat, source: str, floor_ns: int, loop: list[TracedLine] | None, gain: tuple[int, int, int], whole: Whole
) -> Finding:
    low_ns, cost_ns, high_ns = gain
    names = " ".join(name.removeprefix("aten::") for name in repeat.names[:4])
    names += " ..." if len(repeat.names) > 4 else ""
    evidence = [
        Evidence("ops per step in the loop", round(repeat.ops, 1), "", source),
        Evidence("iterations per step", round(repeat.iterations, 1), "", source),
        Evidence("one iteration", " ".join(repeat.names), "", source),
        Evidence("host time of the loop", round(repeat.host_ns / 1e6, 3), "ms", source),
        Evidence("mean op", round(repeat.op_ns / repeat.ops / 1e3, 2), "µs", source),
        Evidence(
            "overhead floor of an op",
            round(floor_ns / 1e3, 2),
            "µs",
            f"the trace's cheapest ops, at least {ms(_FLOOR_NS)}",
        ),
    ]
    if repeat.backward_ns is None:
        evidence.append(Evidence("backward of the loop", None, "ms", "its backward nodes could not be paired"))
    else:
        evidence.append(Evidence("backward of the loop", round(repeat.backward_ns / 1e6, 3), "ms", source))
    row = loop[0] if loop else None
    return Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"A loop runs {repeat.iterations:.0f} times per step over {len(repeat.names)} small "
            f"op{'s' if len(repeat.names) > 1 else ''} ({names}): {ms(cost_ns)}"
            f"{', backward included' if repeat.backward_ns else ''}."
        ),
        advice="Replace the loop by one call over the whole tensor (batched matmul, reduction with dim=, cumsum).",
        confidence="medium" if loop else "low",
        evidence=tuple(evidence),
        file=row.file if row else None,
        line=row.loop_line if row else None,
        function=row.function if row else None,
        cost_ns=cost_ns,
        saving_low_ns=low_ns,
        saving_high_ns=high_ns,
    )
