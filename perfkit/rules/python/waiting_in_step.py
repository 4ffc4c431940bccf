"""The step waits for something that is not the device.

Problem: a thread that sleeps, or waits for a lock, a socket, a file or another process, does nothing meanwhile. It uses
no processor, and queues no work for the device.

How it shows: 5% of the step or more passes in a line of yours, and in what it calls, while the training thread uses no
processor time. Waiting for the loader, for the device, for other ranks, in a log and in a checkpoint has findings of
its own.

Causes: time.sleep() in the loop, to poll for something or to limit the rate; a request to a server in every step (a
reward, an environment, a feature store); a lock that another thread holds for long; a read from a disk or a network
file system; a subprocess that the step waits for.

Fix: ask earlier, and take the answer when it is there; or do not ask in every step.

    pool = ThreadPoolExecutor(1)
    coming = pool.submit(fetch, next_key)      # while the step computes
    ...
    value = coming.result()                    # has arrived: returns at once

    with lock:                                 # hold it for the exchange alone, and not for the work
        item = shared.pop()

Saving: at most all of that time, with the error of sampling. At least 85% of it, as for python-bound: handing over and
taking the answer needs some time. That share was chosen.

Source: time is sampled every 10 ms outside windows. In one sample of three perfkit looks whether the thread's processor
time has changed after 0.2 ms in which it could have had the interpreter lock. Known on Linux only. The thresholds are
5% of the step and 10 samples, or fewer that are certainly a tenth of all.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.host import HostLine, HostWork
from perfkit.rules._host_work import confidence_in, evidence_of, library_of, work_of
from perfkit.rules._places import call_in_loop, is_in_own_loop, is_method
from perfkit.run.records import LineRow, Lines

ID = "waiting-in-step"
CLAIMS = (Selector(owner="waiting"),)
#: A rank that waits in a collective waits for the slow one.
FOLLOWS = ("slow-rank", "exposed-communication")
#: The host waits for the device there, or for what takes longer from step to step.
FOLLOWS_AT_LINE = ("sync-in-step", "blocking-copy", "growing-step", "saved-views")

#: The share that handing over still takes at most: chosen, as for python-bound.
_REMAINS = 0.15
#: A loop around it looks again and again whether something has come.
_POLLS = "sleep("
#: One sample of so many is looked at.
_LOOKED = 3


def check(step: StepBudget, works: tuple[HostWork, ...], lines: Lines | None = None) -> Iterator[Finding]:
    """Find waiting in the user's own lines."""
    work = work_of(works, "waiting")
    if work is None:
        return
    cost = min(step.wall_ns, step.of_mean(work.host_ns))
    if step.is_negligible(cost):
        return
    line = work.lines[0]
    polls = _POLLS in line.waits_for and is_in_own_loop(line, lines)
    held_at = _held_at(line, lines)
    for_what = line.waits_for or library_of(line).removeprefix("in ") or line.function
    yield step.finding(
        cost=cost,
        saving=(
            step.minimum_saving((1 - _REMAINS) * cost, samples=work.samples),
            step.maximum_saving(cost, samples=work.samples // _LOOKED),
        ),
        spent=line,
        change=held_at or (None if polls or is_method(line) else call_in_loop(line, lines)),
        message=f"The step waits {step.shown(cost)}, most of it for {for_what}; no op and no Python runs then.",
        advice=_advice(for_what, held_at, polls=polls),
        confidence=confidence_in(work),
        evidence=(
            *evidence_of(work),
            Evidence("minimum saving", 85, "% of it", "handing over and taking the result leaves at most 15%"),
        ),
    )


def _advice(for_what: str, held_at: Location | None, *, polls: bool) -> str:
    if held_at is not None:
        return (
            "Hold the lock only while its data is read or written: the block in "
            f"line {held_at.line} makes other calls while it holds one of this name."
        )
    if polls:
        return "Wait for an event, a queue or a message in place of this loop, or look more often."
    what = f"Start {for_what} earlier, in another thread or process, and take its result when it has come"
    return f"{what}; or leave it out."


def _held_at(line: LineRow | HostLine, lines: Lines | None) -> Location | None:
    """Where another part of the program holds the lock for which a line waits."""
    held = lines.held_locks if lines is not None else ()
    return next((one.held_at for one in held if (one.file, one.line) == (line.file, line.line)), None)
