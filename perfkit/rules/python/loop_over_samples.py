"""A loop sends the samples of a batch through the model one at a time.

Problem: every layer is called once per sample where once per batch would do: n times the dispatch, n
times the launches, products too small to fill the processor, and the same again in the backward.

How it shows: in the step that is traced by line one module object is called 8 times or more from one line,
each time with the next part of the same tensor and equal shapes, with no backward and no fetch in between.

Causes: a model written for one sample; a queue of requests that are answered one by one; a loss that runs
a network per sample.

Fix: give it the whole batch.

    scores = model(batch)                                # not: torch.cat([model(x[None]) for x in batch])

    torch.nn.utils.rnn.pad_sequence(samples)             # samples of different lengths: pad, or pack
    torch.func.vmap(per_sample_loss)(batch)              # code for one sample, over all of them

Gain: at most what the loop takes, forward and backward, less one round of it, and on a CPU 15% more. At
least what is pure overhead: a round's ops as far as they cost no more than an op costs with nothing to
compute, which is what n - 1 rounds lose; but no less than 65% of that, since a batch also computes faster
than its parts.

Source: 8 equal calls in a row are no accident. 65% was chosen on two programs on one CPU, which gained 83
to 110% (a small convolutional net over 32 samples, and a tower of linear layers over 32 requests), so they
do not prove it. From 5% of the step on. The GPU side: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import traced_ns
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, phase_part, severity_of, whole_of, with_beyond
from perfkit.run.records import ModuleCalls, TracedLine

ID = "loop-over-samples"

#: Calls from one line that are a loop (see above).
_LEAST_CALLS = 8
#: The least share of the loop's time that goes (see above).
_GOES = 0.65


def check(measured: Measured) -> Iterator[Finding]:
    """Find the loop that calls a model per sample, and what one call would leave."""
    whole = whole_of(measured)
    traced = measured.lines.traced if measured.lines is not None else ()
    loops = [
        (row, calls)
        for row in traced
        if row.phase not in ("data", "validation")
        for calls in row.modules
        if calls.sliced and calls.calls >= _LEAST_CALLS
    ]
    if whole is None or not loops:
        return
    # A layer inside a model that is called per sample is called per sample too: the outermost call is the loop.
    row, calls = max(loops, key=lambda one: one[1].host_ns)
    cost_ns = _cost(row, calls, measured, whole)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"{calls.module} is called {calls.calls} times per step, one sample at a time: {ms(cost_ns)} of the "
            f"{ms(whole.wall_ns)} {whole.per} ({percent(cost_ns, whole.wall_ns)})."
        ),
        advice=f"Call {calls.module} once with the whole batch (pad samples of different lengths, or use vmap).",
        confidence="medium",
        evidence=(
            Evidence("calls per step", calls.calls, "", "the step traced by line"),
            Evidence("time of the calls", round(calls.host_ns / 1e6, 3), "ms", "the step traced by line"),
        ),
        file=row.file,
        line=row.line,
        function=row.function,
        cost_ns=cost_ns,
        saving_low_ns=round(_GOES * cost_ns),
        saving_high_ns=with_beyond(cost_ns, measured, whole),
    )


def _cost(row: TracedLine, calls: ModuleCalls, measured: Measured, whole: Whole) -> int:
    """All rounds but one, as parts of the phases they run in: the forward, and the backward of what is learnt."""
    phase = phase_part(measured, row.phase, whole)
    in_phase = traced_ns(measured, row.phase)
    if phase is None or not in_phase:
        return 0
    share = min(1.0, max(calls.host_ns, _loop_ns(row, measured)) / in_phase) * (1 - 1 / calls.calls)
    backward = phase_part(measured, "backward", whole)
    return round(share * (phase.ns + (backward.ns if backward is not None else 0)))


def _loop_ns(row: TracedLine, measured: Measured) -> int:
    """Time of the lines of the loop that the row stands in, if it is one over samples and not the one over steps."""
    traced = measured.lines.traced if measured.lines is not None else ()
    if row.loop_line is None or row.runs < _LEAST_CALLS:
        return row.host_ns
    place = (row.file, row.function, row.loop_line, row.phase)
    return sum(one.host_ns for one in traced if (one.file, one.function, one.loop_line, one.phase) == place)
