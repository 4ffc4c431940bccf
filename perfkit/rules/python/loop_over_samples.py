"""A loop sends the samples of a batch through the model one at a time.

Problem: every layer is called once per sample instead of once per batch: n times the dispatch, n times the launches,
products too small to fill the processor, and the same again in the backward.

How it shows: in the step that is traced by line, one module object is called 8 times or more from one line, each time
with the next part of the same tensor and equal shapes, with no backward and no fetch in between. Where a call of the
model is the step, its first calls get one part of the same tensors after the other, or a loop has one sample for each,
and half of the step or more is Python, the overhead of ops, or computing far from the limit of this machine (of what is
known of the time that no other program has the core).

Causes: a model written for one sample; a queue of requests that are answered one by one; a loss that runs a network per
sample.

Fix: pass the whole batch.

    scores = model(batch)                                # not: torch.cat([model(x[None]) for x in batch])

    torch.nn.utils.rnn.pad_sequence(samples)             # samples of different lengths: pad, or pack
    torch.func.vmap(per_sample_loss)(batch)              # code for one sample, over all of them

Saving: at most the time of the loop, forward and backward, without one of its rounds, and on a CPU 15% more. At least
65% of that: the overhead of n - 1 rounds, and a batch computes faster than its parts. Where a call is the step, all but
the time at the limit of the machine, and at least 65% of what is not computing.

Source: 8 equal calls in a row are no accident. The threshold is 5% of the step. 65% was chosen on two programs on one
CPU. On an H200 sixteen sequences one by one: 32 to 100% of the step predicted, 92% saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.ledger import NEAR_LIMIT, Ledger
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.rules._loops import calling_loop
from perfkit.rules.python._traced_calls import cost_of_calls
from perfkit.run.records import Lines, StepBoundary, TracedLine

ID = "loop-over-samples"
CLAIMS = (*COMPUTING, *PYTHON)

#: As many calls from one line are a loop.
_MIN_CALLS = 8
#: The share of calls with the next part from which on a loop goes through tensors: the first call of each does not.
_SLICED = 0.9
#: The share of the loop's time that is saved at least: chosen, two programs saved 83 to 110%.
_MINIMUM = 0.65


def check(step: StepBudget, lines: Lines, ledger: Ledger | None = None) -> Iterator[Finding]:
    """Find the loop that calls a model per sample, and what one call would leave of it."""
    if ledger is not None and step.counted_by is not None and step.counted_by.module is not None:
        yield from _call_as_step(step, step.counted_by, lines, ledger)
    loops = [
        (calls, row)
        for row in lines.traced
        if row.phase not in ("data", "validation")
        for calls in row.modules
        if (calls.sliced or (calls.items or 0) >= _MIN_CALLS) and calls.calls >= _MIN_CALLS
    ]
    if not loops:
        return
    # A layer inside a model that is called per sample is called per sample too: the outermost call is the loop.
    calls, row = max(loops, key=lambda loop: loop[0].host_ns)
    loop_ns = max(calls.host_ns, _loop_ns(row, lines))
    rounds = calls.calls if calls.sliced else calls.items or calls.calls
    cost = round((1 - 1 / rounds) * cost_of_calls(loop_ns, row, lines, step, backward=True))
    if step.is_negligible(cost):
        return
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=row,
        # A function between the loop and the model takes one sample: the loop is what can pass many.
        change=calling_loop(row, lines) if calls.items and row.loop_line is None else None,
        message=(f"{calls.module} is called {calls.calls} times per step, one sample at a time: {step.shown(cost)}."),
        advice=f"Call {calls.module} once with the whole batch (pad samples of different lengths, or use vmap).",
        evidence=(
            Evidence("calls per step", calls.calls, "", "the step traced by line"),
            Evidence.ms("time of the calls", calls.host_ns, "the step traced by line"),
        ),
    )


def _call_as_step(step: StepBudget, by: StepBoundary, lines: Lines, ledger: Ledger) -> Iterator[Finding]:
    """Find calls of a model with one part of the same tensors, or one sample, each, with little to compute in each."""
    sliced = (by.sliced or 0.0) >= _SLICED
    traced = (calls.items or 0 for row in lines.traced for calls in row.modules if calls.module == by.module)
    items = max(by.items or 0, *traced, 0)
    if not sliced and items < _MIN_CALLS:
        return
    overhead = sum(row.ns for row in ledger.rows if row.owner in ("python", "op overhead"))
    computing = sum(max(0, row.ns - (row.limit_ns or 0)) for row in ledger.rows if row.owner == "computing")
    # Small products are far from the limit that a batch comes near to. Ops whose limit is not known say nothing, nor
    # does what other programs had of the processor.
    known = [row for row in ledger.rows if row.owner == "computing" and row.limit_ns is not None]
    known_ns = overhead + sum(row.ns for row in known)
    near_ns = sum(min(row.ns, (row.limit_ns or 0) / NEAR_LIMIT) for row in known)
    own_ns = step.wall_ns - ledger.others_ns
    if known_ns < MAJORITY * own_ns or known_ns - near_ns < MAJORITY * known_ns:
        return
    yield step.finding(
        cost=overhead + computing,
        saving=(_MINIMUM * overhead, overhead + computing),
        spent=by.called_at,
        change=None if sliced else calling_loop(by.called_at, lines),
        message=(
            f"{by.module} is called with one {'part of the same tensors' if sliced else 'sample'} after the other: "
            f"{step.shown(overhead)} is Python and the overhead of ops, which a call with many has once."
        ),
        advice=f"Call {by.module} with many samples at once (pad samples of different lengths, or use vmap).",
        evidence=(
            Evidence.percent("overhead of a call", overhead, step.wall_ns, "the ledger"),
            Evidence("calls with the next part", round(100 * (by.sliced or 0.0)), "% of the first 64", "rank.json")
            if sliced
            else Evidence("items of the loop", items, "", "the step traced by line, and the source"),
        ),
    )


def _loop_ns(row: TracedLine, lines: Lines) -> int:
    """Time of all lines of the loop around a line; of that line alone where the loop is the one over steps.

    Zero for a line that began before the step: the loop is in the library that it calls. Zero too where most of what
    the loop calls is not called with samples: a decoder that looks up one word after the other has a state, and only
    the look-ups can be one call.
    """
    if not row.runs:
        return 0
    loop = (row.file, row.function, row.loop_line, row.phase)
    alone = row.loop_line is None or row.runs < _MIN_CALLS
    whole = [one for one in lines.traced if (one.file, one.function, one.loop_line, one.phase) == loop]
    rows = [row] if alone else whole
    called = [calls for one in rows for calls in one.modules]
    samples_ns = sum(calls.host_ns for calls in called if calls.sliced or calls.items)
    if samples_ns < MAJORITY * sum(calls.host_ns for calls in called):
        return 0
    return sum(one.host_ns for one in rows)
