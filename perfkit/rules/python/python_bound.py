"""Plain Python runs in the step while no op does.

Problem: the interpreter takes 20 to 100 ns for each small operation, and no op of torch runs meanwhile: a GPU runs out
of work, and a CPU computes on one core at a hundredth of its speed.

How it shows: 5% of the step or more is spent in your own lines, and what they call of Python's library, without an op,
a fetch, a validation, a log, a checkpoint or a garbage collection. Python that runs before the model and prepares its
inputs is reported by cpu-preprocessing.

Causes: a metric or an edit distance in loops over lists; tensors converted to lists and back; tables computed again in
each call of forward; a search or sampling written for single items.

Fix: one call over all items, less often, or next to the training.

    wrong = (scores.argmax(-1) != labels).float().mean()     # not: a loop over scores.tolist()

    self.register_buffer("angles", make_angles(length))      # once, not in every forward

    if step % 100 == 0:                                      # a metric that people read
        report(edit_distance(...))

In a trace of torch.profiler alone (`with_stack=True`) it shows where a device is idle in each step, in a few long gaps,
while the host is in Python of one of your functions: from nothing to all of that time is saved.

Saving: of sampled time at most all, with the error of sampling and a quarter more, because samples miss some of the
Python right before an op. At least 85% of it: the vectorized form takes some time too. Both shares were chosen. Of time
in the step for lines half as much at least.

Source: time is sampled every 10 ms outside windows; of a run too short for that, it is that of the step for lines. That
step shows which lines call ops, too: one that is inside its ops for more than 5% of its time is not counted. The
thresholds are 5% of the step and 10 samples, or fewer that are certainly a tenth of all. In a rollout it is
information: where training reads it in some steps, or where it is in a loop that asks a model without gradients. How
much of a simulator is needed is not known.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import shown_function
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import PYTHON
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.host import HostWork
from perfkit.measures.results.loop import LoopTime
from perfkit.rules._host_work import confidence_in, evidence_of, work_of
from perfkit.rules._loops import is_in_rollout
from perfkit.rules._places import call_in_loop, interval_of, is_method, repeats_in_call
from perfkit.rules.device._late_launches import is_habit
from perfkit.run.records import Lines

ID = "python-bound"
CLAIMS = PYTHON
#: The Python in the step is the compiler's, or what anomaly detection records for every node.
FOLLOWS = ("recompiles", "anomaly-detection", "graph-breaks")
#: A loop that calls small ops, or layers, is Python between them too; its own finding counts that time. So does that of
#: a function that only rare steps call, or that takes longer in each step.
FOLLOWS_IN_FUNCTION = ("many-small-ops", "loop-over-samples", "rare-steps", "growing-step")
FOLLOWS_AT_LINE = ("saved-views",)

#: The share that one vectorized call still takes at most: chosen, the six loops of many-small-ops left 3 to 7%.
_REMAINS = 0.15
#: The share that samples miss, as an error: chosen, three programs saved 1.07, 1.31 and 1.38 times the sampled time.
_UNSEEN = 0.25


def check(
    step: StepBudget, works: tuple[HostWork, ...] = (), lines: Lines | None = None, loop: LoopTime | None = None
) -> Iterator[Finding]:
    """Find the user's own Python in the step."""
    work = work_of(works, "python")
    if work is None:
        if step.device is not None and lines is None:
            yield from _while_idle(step, step.device)
        return
    cost = min(step.wall_ns, step.of_mean(work.host_ns))
    if step.is_negligible(cost):
        return
    function = shown_function(work.lines[0])
    in_loop = repeats_in_call(work.lines[0], lines)
    called = call_in_loop(work.lines[0], lines)
    every = interval_of(lines, called)
    call = None if work.lines[0].before_model or in_loop or is_method(work.lines[0]) else called
    # A simulator, or a game: how much of a rollout is needed is not known.
    rollouts = [part for part in (loop.rare if loop is not None else ()) if part.for_training]
    functions = {(at.file, at.function) for part in rollouts for at in (part.at, part.called) if at is not None}
    is_rollout = (work.lines[0].file, work.lines[0].function) in functions or is_in_rollout(work.lines[0], lines)
    yield step.finding(
        severity="info" if is_rollout else None,
        cost=cost,
        saving=(
            step.minimum_saving((1 - _REMAINS) * cost, samples=work.samples),
            step.maximum_saving(cost, samples=work.samples, error=_UNSEEN),
        ),
        spent=work.lines[0],
        # What makes the model's inputs no step can do without: it runs before the model, or training reads its result.
        change=every or (None if lines is not None and call in lines.training_inputs else call),
        message=f"Plain Python takes {step.shown(cost)}, most of it in {function}; no op runs meanwhile.",
        advice=f"Do the work of {function} in one call over all items, once before training, or less often.",
        confidence=confidence_in(work),
        evidence=(
            *evidence_of(work),
            Evidence("minimum saving", 85, "% of it", "a vectorized form leaves at most 15%"),
        ),
    )


def _while_idle(step: StepBudget, device: DeviceTime) -> Iterator[Finding]:
    """Find Python in which the device is idle once or a few times per step; many short gaps are launch-bound's."""
    if is_habit(device):
        return
    idle = [one for one in device.idle if one.cause == "python" and one.at is not None and one.gaps >= device.steps]
    longest = max(idle, key=lambda one: one.ns, default=None)
    if longest is None or longest.at is None:
        return
    cost = step.of_device(longest.ns)
    if step.is_negligible(cost):
        return
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        spent=longest.at,
        message=(
            f"Device {device.device} waits {step.shown(cost)} while the host is in Python, in "
            f"{shown_function(longest.at)}, and launches nothing."
        ),
        advice="Do what runs there less often, before the training, or in another process.",
        confidence="medium",
        evidence=(
            Evidence.ms("idle", cost, f"device {device.device}, while the host is in Python's frames"),
            Evidence("gaps", longest.gaps, "", f"in {device.steps} steps"),
        ),
    )
