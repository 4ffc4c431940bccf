"""The optimizer updates parameter after parameter, op by op.

Problem: an update is a few elementwise ops for every parameter. One after another, some thousand times per step, each
has an op's overhead (and a kernel launch on a GPU). One fused kernel does the same arithmetic in one pass.

How it shows: the range of the optimizer's step contains at least 50 single ops, hardly any of them `_foreach_` or
`_fused_` ones, and takes 5% of the step or more beyond what a fused update takes.

Causes: the default of torch's optimizers on a CPU (and `foreach=False`); a custom optimizer that loops over parameters.

Fix: update all parameters with one call.

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    torch._foreach_lerp_(momenta, grads, 0.01)      # a custom optimizer: lists, no loop

Saving: the time of the range minus what remains of it: 10 to 40% for an optimizer of torch, 5 to 45% for a custom one
that uses lists of tensors. On a GPU 10 to 50% remains, and the saving is at most the device's idle time and the
update's own kernels.

Source: measured on one CPU with Adam and Lion. Updates whose ops take longer than 100 µs on average are limited by
memory and not reported. The threshold is 5% of the step. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.device import LATE_LAUNCHES, IdleCause
from perfkit.measures.results.patterns import OptimizerUpdate, Patterns
from perfkit.rules._loops import loop_of
from perfkit.rules._places import to_edit
from perfkit.run.records import Lines, Rank

ID = "unfused-optimizer"
CLAIMS = (Selector(phase="optimizer"), Selector(owner="idle", names=LATE_LAUNCHES), Selector(names=("optimizer",)))

#: Fewer single ops are the bookkeeping of one parameter group.
_MIN_OPS = 50
#: A mean op this long moves a megabyte or more: memory limits it, also when ops are fused.
_LARGE_NS = 100_000
#: Idle of a device that an optimizer's loop makes: launches have a class of their own.
_LATE: tuple[IdleCause, ...] = ("optimizer", "launch call", "launch latency")
#: From this share of ops over lists on, the update is one of lists with some single ops (chosen).
_LISTS = 0.2
#: The share that remains, at the high end and at the low end of the saving: measured on a CPU, chosen for a device.
_REMAINS = {"torch": (0.1, 0.4), "custom": (0.05, 0.45), "device": (0.1, 0.5)}


def check(
    step: StepBudget, patterns: Patterns, lines: Lines | None = None, rank: Rank | None = None
) -> Iterator[Finding]:
    """Find optimizer steps made of single ops."""
    for update in patterns.updates:
        over_lists = update.foreach + update.fused
        large = update.op_ns > _LARGE_NS * update.ops
        if update.ops - over_lists < _MIN_OPS or large or over_lists > _LISTS * update.ops:
            continue
        low, cost = _saving(update, patterns, step)
        if step.is_negligible(cost):
            continue
        source = f"{patterns.source}, per step"
        kernels = [Evidence.ms("its kernels", update.device_ns, source)] if update.device_ns is not None else []
        yield step.finding(
            cost=cost,
            saving=(low, cost),
            spent=loop_of(update.body, lines) or update.at,
            change=_made_at(update, rank) if update.body is None else None,
            message=f"{update.name} makes {update.ops:.0f} ops per step: one fused update saves up to {ms(cost)}.",
            advice=(
                "Update lists of tensors (torch._foreach_add_ ...) instead of looping over parameters."
                if update.body is not None
                else f"torch.optim.{update.name}(..., fused=True), or foreach=True where it has no fused form."
            ),
            evidence=(
                Evidence("ops of the optimizer", round(update.ops, 1), "", source),
                Evidence("of them over lists", round(update.foreach, 1), "", source),
                Evidence("of them fused", round(update.fused, 1), "", source),
                Evidence.ms("optimizer's step on the host", update.host_ns, source),
                *kernels,
            ),
        )


def _made_at(update: OptimizerUpdate, rank: Rank | None) -> Location | None:
    """The line that makes the optimizer, or the Trainer's argument that names it."""
    made = (one.created_at for one in (rank.optimizers if rank is not None else ()) if one.kind == update.name)
    return to_edit(rank, next(made, None), "optim")


def _saving(update: OptimizerUpdate, patterns: Patterns, step: StepBudget) -> tuple[int, int]:
    phase = step.typical.phases_ns.optimizer if step.typical is not None else None
    if step.device is not None:
        kind = "device"
        # The host's time counts only while the device waits for it.
        late = sum(step.device.causes.get(cause, 0) for cause in _LATE)
        total = min(step.of_device(late), update.host_ns) + (update.device_ns or 0)
    else:
        kind = "custom" if update.body is not None else "torch"
        total = step.of_pattern(update.host_ns, patterns)
        if phase is not None:
            # As timed by the step clock: recording slows small ops more, so the share of an optimizer may change.
            total = round(phase * update.host_ns / max(1, sum(one.host_ns for one in patterns.updates)))
    total = min(step.wall_ns, total)
    high_end, low_end = _REMAINS[kind]
    return round(total * (1 - low_end)), round(total * (1 - high_end))
