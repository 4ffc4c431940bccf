"""A loop in Python calls the same few small operations again and again.

Problem: an operation takes a few microseconds of dispatch, allocation and autograd bookkeeping (and a kernel launch on
a GPU) before it computes anything. A loop over rows, time steps or samples pays that in every iteration, and again in
the backward pass.

How it shows: the same sequence of ops repeats at least 10 times in a step of the trace, and an op takes at most 20
times the overhead of an op on average (measured in the trace, at least 2 µs). Or a loop of 10 iterations or more that
calls no module, most of whose time in the ledger is far from the limit of this machine: ops that differ from one
iteration to the next, or a layer for each slice. Or such a loop in a forward that calls the same layers in each
iteration: a recurrence over time steps, written by hand.

Causes: a loop over the batch or the sequence where one batched call exists; indexing element by element; attention,
softmax or a norm written by hand.

Fix: one call over the whole tensor.

    scores = query @ keys.transpose(-2, -1)         # not: for i in range(n): s[i] = (query[i] * keys[i]).sum()
    y = F.layer_norm(x, x.shape[-1:])               # not: (x - mean) / std, op by op
    y = torch.cumsum(x, dim=1)                      # not: for t in range(T): total = total + x[:, t]

Where an iteration needs the result of the one before, as the loop's source shows: torch.compile, an RNN module, or a
scan. Such a loop may be what the algorithm takes: it is information, and on a GPU it counts one level less.

Saving: n iterations become one, so (loop + backward) x (1 - 1/n), from the loop's first op to its last and with the
backward of its ops. High end: all of it, on a CPU 15% more because the rest of the step gets faster too. Low end: what
the ops take beyond their overhead remains, between 15 and 30% of it. On a GPU at most the device's idle time and the
loop's own device time. Times of the trace count by their share of its step.

Not reported: other bodies with layers that have parameters (loop-over-samples sees those by their modules), recurrences
with attention, which no layer of torch replaces, and a body with collectives (exposed-communication).

Source: torch's own ForLoopIndexing pattern also requires 10 repeats. The factor 20, the 2 µs and what remains were
measured on one CPU. The threshold is 5% of the step. On an H200 one average of 322 weights took 14% of the step (9 to
19% predicted), norms of gradients one by one 17% (11 to 23%).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from perfkit._format import ms
from perfkit._location import Location
from perfkit.findings import Evidence, Finding, Severity
from perfkit.ledger.ledger import NEAR_LIMIT, Ledger
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.measures.results.host import Ops, Repeat
from perfkit.measures.results.work import StepWork
from perfkit.rules._loops import LoopOps, busiest_of, only_called_from, ops_of_loops
from perfkit.run.records import Lines, TracedLine

ID = "many-small-ops"
CLAIMS = (*COMPUTING, *PYTHON)
#: Anomaly detection adds small ops to every node.
FOLLOWS = ("anomaly-detection",)
#: A loop over heads is the attention: what one fused call saves is known better than for loops in general. A loop over
#: values that are logged, or in a metric, is that.
FOLLOWS_AT_LINE = ("attention-unfused", "logging-in-step", "metric-in-step")

_REPEATS = 10
#: An op is small up to this many times the overhead of an op (calibrated on one machine).
_SMALL = 20
#: The overhead of an op in a trace, at least (calibrated on one machine). What the trace itself shows are its cheapest
#: ops, among them views and ops inside ops, and no call in a loop is as cheap as those.
_MIN_OVERHEAD_NS = 2_000
#: Python between two ops of a loop over small ops: 0.4 to 11 µs in 40 loops of the labelled suite and of others, 70
#: to 256 µs in four loops that compute something else in Python, which is no time of these ops.
_PYTHON_NS = 20_000
#: Ops that no line calls by its name: torch does on the way to a number, or from a list.
_UNNAMED = ("resolve_conj", "resolve_neg", "lift_fresh")
#: Layers with parameters of their own; and collectives, whose loops wait for other processes and the link.
_NOT_A_SMALL_OP = re.compile(
    r"^aten::(linear|addmm|conv|_conv|(?!linalg_)\w+_norm|embedding|lstm|gru|rnn)|^(c10d|_c10d_functional)::"
)
#: The share of the loop's time that remains after the correction, for the low end of the saving: at least 0.15, since
#: one call has overhead too and times of a trace are off by some percent; at most 0.3 (both chosen).
_REMAINS = (0.15, 0.3)
#: A loop belongs to a repeat if its busiest line ran as often, within this factor (chosen): the first and last
#: iterations often look different in the trace, and a body may contain one branch of two.
_RUNS_FACTOR = 1.5
#: Where no op ran as often as the loop: the ops of one branch run at least 1 / this as often as the loop (chosen).
_BRANCHES = 3
#: Equal statements of a body: their ops run this many times as often as the loop, at most (chosen).
_STATEMENTS = 4


_WHOLE = "Replace the loop by one call over the whole tensor (batched matmul, dim=, groups=, cumsum, torch.vmap)."
_ANOTHER = (
    "Look for another function, or an argument of this one, that does it in one call; or compile it (torch.compile)."
)
_ONCE = "Call it once, before the loop, where it returns the same each time (state_dict(), parameters())."
_RECURRENCE = (
    "Compute what needs no earlier result for all time steps at once, and the rest in one nn.GRU, nn.LSTM or nn.RNN; "
    "or compile the loop (torch.compile)."
)
_CARRIED = (
    "Each iteration needs the result of the one before: compile the loop (torch.compile), or use one function for all "
    "of them (cumsum, a scan)."
)


def check(
    step: StepBudget,
    ops: Ops | None = None,
    lines: Lines | None = None,
    ledger: Ledger | None = None,
    work: StepWork | None = None,
) -> Iterator[Finding]:
    """Find repeated small ops, the user's loop that makes them, and what one pass would save."""
    repeated = list(_repeats(step, ops, lines, work)) if ops is not None else []
    yield from repeated
    if lines is not None and ledger is not None and ledger.basis == "training thread":
        overhead = max((ops.floor_ns if ops is not None else None) or 0, _MIN_OVERHEAD_NS)
        yield from _slow_loops(step, lines, ledger, _SMALL * overhead, {one.spent for one in repeated})


def _slow_loops(
    step: StepBudget, lines: Lines, ledger: Ledger, small_ns: int, known: set[Location | None]
) -> Iterator[Finding]:
    """Loops whose ops differ from one iteration to the next, or are layers' without a module: by the ledger's rows."""
    if None in known:
        return  # which loop that is was not found: it may be any
    seen = {(one.file, one.function) for one in known if one is not None}
    loops = list(ops_of_loops(lines, ledger, small_ns))
    # What carries may have a loop in it that does not, and in which most of its time passes: that one comes first.
    for loop in sorted(loops, key=lambda one: (any(_is_most_of(inner, one) for inner in loops), -one.slow_ns)):
        cost = ledger.as_wall(loop.slow_ns * (1 - loop.rounds / max(1, loop.iterations)))
        remains = max(ledger.as_wall(loop.limit_ns) / NEAR_LIMIT, _REMAINS[1] * cost)
        if loop.iterations < _REPEATS or loop.slow_ns < MAJORITY * loop.total_ns or step.is_negligible(cost - remains):
            continue
        # What Python does most of, and what makes the inputs, other rules know better.
        of_python = loop.python_ns > max(MAJORITY * loop.slow_ns, loop.ops * _PYTHON_NS)
        if seen & loop.functions or loop.before_model or of_python:
            continue
        seen |= loop.functions
        yield step.finding(
            cost=cost,
            saving=(cost - remains, step.maximum_saving(cost)),
            spent=loop.busiest or loop.at,
            change=loop.at if loop.busiest is not None else None,
            message=(
                f"A loop runs {loop.iterations:,} times per step over {loop.ops / loop.iterations:.0f} ops each, "
                f"far from what the machine can do: {step.shown(cost)}, backward included."
            ),
            advice=_RECURRENCE if loop.recurrent else _CARRIED if loop.carries else _WHOLE,
            severity=_of_carried(step, cost) if loop.carries and not loop.recurrent else None,
            confidence="medium",
            evidence=(
                Evidence("iterations per step", loop.iterations, "", "the step traced by line"),
                Evidence.ms("ops and Python of the loop", loop.total_ns, "the ledger"),
                Evidence.ms("of it far from the limit", loop.slow_ns, "the ledger"),
                Evidence.ms("the limit of that", loop.limit_ns, "the ledger"),
            ),
        )


def _is_most_of(inner: LoopOps, loop: LoopOps) -> bool:
    """Whether a loop that carries nothing is called by one that does, and has most of its time."""
    called = inner.functions < loop.functions and loop.carries and not inner.carries
    return called and inner.iterations >= _REPEATS and inner.slow_ns > MAJORITY * loop.slow_ns


def _repeats(step: StepBudget, ops: Ops, lines: Lines | None, work: StepWork | None) -> Iterator[Finding]:
    """The same sequence of small ops again and again, in the trace."""
    overhead = max(ops.floor_ns or 0, _MIN_OVERHEAD_NS)
    all_loops = _loops(lines)
    loops = dict(all_loops)
    for repeat in sorted(ops.repeats, key=lambda repeat: -repeat.host_ns):
        if any(_NOT_A_SMALL_OP.search(name) for name in repeat.names):
            continue
        if repeat.iterations < _REPEATS or repeat.op_ns > repeat.ops * _SMALL * overhead:
            continue
        if (repeat.device_ns or 0) > repeat.op_ns:
            continue  # small on the host only: their kernels take longer than the ops that launch them
        low, cost = _saving(repeat, overhead, step)
        if step.is_negligible(cost):
            continue
        loop = _loop_of(repeat, loops, work)
        if loop is not None and loops.pop(loop)[0].phase == "data":
            continue  # input-bound reports the data phase
        iterations, ops_each = repeat.iterations, float(len(repeat.names))
        if loop is not None and (runs := max(row.runs for row in all_loops[loop])) * _RUNS_FACTOR < iterations:
            iterations, ops_each = float(runs), repeat.ops / runs
        if loop is not None and (inner := _loop_inside(loop, repeat, all_loops, work)) is not None:
            loop, iterations = inner, max(row.runs for row in all_loops[inner])
            ops_each = repeat.ops / iterations
        shown = [name.removeprefix("aten::") for name in repeat.names]
        shown = [name for name in shown if name not in _UNNAMED] or shown
        names = " ".join(shown[:4])
        # Each of the user's loops was followed: what is none of them is in a library that one of their lines calls. A
        # line that the traced step did not reach is in a loop that not every step has.
        traced = {(row.file, row.line) for row in lines.traced} if loop is None and lines is not None else set()
        caller = _caller_of(repeat, work) if traced else None
        in_library = bool(traced) and (caller is None or (caller.file, caller.line) in traced)
        carries = loop in all_loops and any(row.loop_carries for row in all_loops[loop])
        # A call that is in a loop of the user's too need not be in a step as often.
        calls = _runs_in_loop(caller, lines) if in_library else 0
        calls = calls if calls >= _REPEATS and iterations >= _REPEATS * calls else 0
        yield step.finding(
            cost=cost,
            saving=(low, step.maximum_saving(cost)),
            spent=(busiest := _busiest_line(loop, repeat, lines, work)) or loop or caller,
            change=loop if busiest is not None else None,
            message=(
                f"{_often(caller, calls)} loop{' in a library' if in_library else ''} runs "
                f"{iterations / max(1, calls):.0f} times{'' if calls else ' per step'} over "
                f"{ops_each:.0f} small op{'s' if round(ops_each) != 1 else ''} "
                f"({names}{' ...' if len(shown) > 4 else ''}): "
                f"{ms(cost)}{', backward included' if repeat.backward_ns else ''}."
            ),
            advice=_ONCE if calls else _ANOTHER if in_library else _CARRIED if carries else _WHOLE,
            severity="info" if in_library and not calls else _of_carried(step, cost) if carries else None,
            confidence="low" if loop is None and not calls and (in_library or caller is None) else "medium",
            evidence=tuple(_evidence(repeat, overhead, f"trace, {ops.steps} steps")),
        )


def _runs_in_loop(caller: Location | None, lines: Lines | None) -> int:
    """How often a line runs in a step in a loop of the user's; 0 where it is in none."""
    rows = lines.traced if lines is not None and caller is not None else ()
    return max((row.runs for row in rows if row.at == caller and row.loop_line is not None), default=0)


def _often(caller: Location | None, calls: int) -> str:
    return f"Line {caller.line} runs {calls:,} times per step, and each time a" if caller is not None and calls else "A"


def _of_carried(step: StepBudget, cost: float) -> Severity:
    """Each iteration needs the one before, so that the loop may be what the algorithm takes."""
    return "warning" if step.on_device and step.severity(cost) == "critical" else "info"


def _saving(repeat: Repeat, overhead: int, step: StepBudget) -> tuple[int, int]:
    backward = (repeat.backward_ns or 0) * step.trace_scale
    if (phase := step.phase("backward")) is not None:
        # The recording slows a backward of many nodes more than the rest of the step.
        backward = min(backward, phase.ns)
    host_ns = min(repeat.host_ns, repeat.op_ns + round(repeat.ops * _PYTHON_NS))
    removed = (host_ns * step.trace_scale + backward) * (1 - 1 / repeat.iterations)
    computing = 1 - repeat.ops * overhead / repeat.op_ns if repeat.op_ns else 0.0
    at_least, at_most = _REMAINS
    remaining = min(max(computing, at_least), at_most) * removed
    limit: float = step.wall_ns
    if step.device is not None:
        idle_ns = max(0, step.device.idle_ns - step.device.causes.get("data loading", 0))
        limit = min(limit, step.of_device(idle_ns) + (repeat.device_ns or 0) * step.trace_scale)
    cost = min(removed, limit)
    return round(max(0.0, min(removed - remaining, cost))), round(cost)


def _loops(lines: Lines | None) -> dict[Location, list[TracedLine]]:
    """The user's loops in the step that was traced by line, each with its lines."""
    loops: dict[Location, list[TracedLine]] = {}
    for row in lines.traced if lines is not None else ():
        if row.owner == "user" and row.loop_line is not None:
            loops.setdefault(msgspec.structs.replace(row.at, line=row.loop_line), []).append(row)
    return loops


def _loop_of(repeat: Repeat, loops: dict[Location, list[TracedLine]], work: StepWork | None) -> Location | None:
    """The loop that ran as often as the ops repeat, else up to `_BRANCHES` times, else whose lines call most of them.

    Of several, the one whose lines call these ops for longest, else the longest.
    """
    ops_ns = {loop: _ops_ns(repeat, loops[loop], work) for loop in loops}

    def ran(loop: Location, at_most: float) -> bool:
        runs = max(row.runs for row in loops[loop])
        return repeat.iterations / _RUNS_FACTOR <= runs <= repeat.iterations * at_most

    def longest(at_most: float) -> Location | None:
        chosen = [loop for loop in loops if ran(loop, at_most)]
        return max(chosen, key=lambda loop: (ops_ns[loop], sum(row.host_ns for row in loops[loop])), default=None)

    return longest(_RUNS_FACTOR) or longest(_BRANCHES) or _with_several(repeat, loops, ops_ns, work)


def _with_several(
    repeat: Repeat, loops: dict[Location, list[TracedLine]], ops_ns: dict[Location, int], work: StepWork | None
) -> Location | None:
    """The loop whose lines call most of the ops, each iteration a few times."""
    most = MAJORITY * _called_at(repeat, work).total()
    least = max(_REPEATS, repeat.iterations / _STATEMENTS)
    chosen = [loop for loop, ns in ops_ns.items() if ns > most and max(row.runs for row in loops[loop]) >= least]
    return max(chosen, key=lambda loop: ops_ns[loop], default=None)


def _loop_inside(
    loop: Location, repeat: Repeat, loops: dict[Location, list[TracedLine]], work: StepWork | None
) -> Location | None:
    """The loop that each iteration of ``loop`` runs and whose lines call most of the ops; None where there is none.

    A body that repeats may have several equal rounds of a loop in it: that loop is the smallest one to replace.
    """
    outer = max(row.runs for row in loops[loop])
    inner = [one for one in loops if one != loop and max(row.runs for row in loops[one]) >= 2 * outer]
    ops_ns = {one: _ops_ns(repeat, loops[one], work) for one in inner}
    found = max(inner, key=lambda one: ops_ns[one], default=None)
    most = MAJORITY * _called_at(repeat, work).total()
    return found if found is not None and ops_ns[found] > most else None


def _ops_ns(repeat: Repeat, loop: Sequence[TracedLine], work: StepWork | None) -> int:
    """The time of these ops below the lines of a loop."""
    lines = {(row.file, row.line) for row in loop}
    return sum(ns for at, ns in _called_at(repeat, work).items() if (at.file, at.line) in lines)


def _busiest_line(loop: Location | None, repeat: Repeat, lines: Lines | None, work: StepWork | None) -> Location | None:
    """The line of the loop's body below which most of the time of its ops passes; None where there is none."""
    rows = _loops(lines).get(loop, []) if loop is not None else []
    if loop is None or lines is None or not rows:
        return None
    body = {(row.file, row.line) for row in rows}
    functions = only_called_from(body, lines)
    called = _called_at(repeat, work)
    inside = {at: ns for at, ns in called.items() if (at.file, at.line) in body or (at.file, at.function) in functions}
    return busiest_of(inside, loop, body)


def _caller_of(repeat: Repeat, work: StepWork | None) -> Location | None:
    """The user's line below which all of these ops run, for longest; None where that is not known."""
    ops: dict[Location, set[str]] = {}
    for row in work.rows if work is not None else ():
        if row.at is not None:
            ops.setdefault(row.at, set()).add(row.op)
    called = _called_at(repeat, work)
    return max((at for at in called if ops[at].issuperset(repeat.names)), key=lambda at: called[at], default=None)


def _called_at(repeat: Repeat, work: StepWork | None) -> Counter[Location]:
    """The time of these ops below each of the user's lines."""
    called: Counter[Location] = Counter()
    for row in work.rows if work is not None else ():
        if row.at is not None and row.op in repeat.names:
            called[row.at] += row.ns
    return called


def _evidence(repeat: Repeat, overhead: int, source: str) -> Iterator[Evidence]:
    yield Evidence("ops per step in the loop", round(repeat.ops, 1), "", source)
    yield Evidence("iterations per step", round(repeat.iterations, 1), "", source)
    yield Evidence("one iteration", " ".join(repeat.names), "", source)
    yield Evidence.ms("host time of the loop", repeat.host_ns, source)
    yield Evidence("mean op", round(repeat.op_ns / repeat.ops / 1e3, 2), "µs", source)
    cheapest = f"the trace's cheapest ops, at least {ms(_MIN_OVERHEAD_NS)}"
    yield Evidence("overhead of an op", round(overhead / 1e3, 2), "µs", cheapest)
    paired = source if repeat.backward_ns is not None else "its backward nodes could not be paired"
    yield Evidence.ms("backward of the loop", repeat.backward_ns, paired)
