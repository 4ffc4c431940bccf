"""The optimizer updates parameter after parameter, or op by op.

Problem: an update is a few elementwise ops for every parameter. One after another, some thousand times per step, each
has an op's overhead (and a kernel launch on a GPU), and each reads and writes its tensors again: large temporary
results get new pages from the system every time. One fused call does the same arithmetic in one pass.

How it shows: the ops in the range of the optimizer's step are single ones, hardly any of them `_foreach_` or `_fused_`
ones, and what a faster form would save is at least 5% of the step. On a GPU the `_foreach_` ops of Adam and AdamW are
reported too: each is a pass over memory.

Causes: the default of torch's optimizers (on a GPU lists, on a CPU single ops), and `foreach=False`; a custom optimizer
that loops over parameters.

Fix: update all parameters with one call. On a CPU Adam, AdamW, Adagrad and SGD have a fused form; other optimizers of
torch have foreach=True, which saves the Python between the ops; LBFGS and SparseAdam have neither.

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    torch._foreach_lerp_(momenta, grads, 0.01)      # a custom optimizer: lists, no loop

Saving: the time of the update minus what remains of it. Of a fused one: the overhead of some of its ops, and one pass
over parameters, gradients and states at this machine's bandwidth, at most twice that. Of lists of tensors (foreach):
the time in ops, less 0.5 to 1.5 overheads for each op. On a GPU 5 to 20% of the idle time for its launches remains, and
20 to 100% of its kernels; of kernels over lists 35 to 60%, as a fused update goes 7 times over memory, and one of lists
18 to 20 times.

Source: measured on one CPU with the optimizers of torch and Lion. The threshold is 5% of the step, for the minimum of
the saving: less cannot be told from noise. On an H200, of a step with AdamW one by one over 402 tensors, 33 to 55% were
predicted and fused=True saved 54%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit._format import ms
from perfkit.findings import AdvisedEdit, Evidence, Finding
from perfkit.ledger.faster_updates import Form, UpdateTimes, facts_of, faster_form, is_in_passes, update_on_host
from perfkit.ledger.rows import LATE, Selector
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.measures.results.device import DeviceTime, IdleCause
from perfkit.measures.results.patterns import OptimizerUpdate, Patterns
from perfkit.measures.results.work import OpShares, StepWork
from perfkit.rules._loops import loop_of
from perfkit.rules._places import to_edit
from perfkit.rules.ops._embedding_tables import little_used, sparse_is_exact
from perfkit.run.records import Lines, MachineLimits, OptimizerFacts, Rank

ID = "unfused-optimizer"
#: Fused updates are as slow with such numbers.
FOLLOWS_AT_LINE = ("subnormal-numbers",)
CLAIMS = (
    Selector(phase="optimizer"),
    LATE,
    Selector(names=("optimizer",)),
    Selector(phase="none", prefix="aten::_foreach_"),
)

#: Idle of a device that an optimizer's loop makes: launches have a class of their own.
_LATE: tuple[IdleCause, ...] = ("optimizer", "launch call", "launch latency")
#: What remains on a device, at the high end and at the low end of the saving: of the idle time for launches (one launch
#: for dozens of tensors), and of the kernels (one pass over memory for several, or as many). Chosen.
_IDLE_REMAINS, _KERNELS_REMAIN = (0.05, 0.2), (0.2, 1.0)
#: The same of kernels over lists. At least: Adam's eight ops read and write 18 tensors, with a decay of weights 20, and
#: the fused form 7, all at the limit of the memory's bandwidth; at most: chosen.
_LISTS_REMAIN = (0.35, 0.6)
#: An update written in Python has less than this share of its time in ops only if it does something else as well: one
#: of Lion's, four ops per tensor, has half of it in ops.
_MIN_IN_OPS = 0.25
#: Ops on sparse gradients, which a fused update refuses.
_SPARSE = frozenset({"aten::coalesce", "aten::_coalesce", "aten::_indices", "aten::_values", "aten::sparse_mask"})


def check(
    step: StepBudget,
    patterns: Patterns,
    lines: Lines | None = None,
    rank: Rank | None = None,
    limits: MachineLimits | None = None,
    work: StepWork | None = None,
    shares: OpShares | None = None,
) -> Iterator[Finding]:
    """Find optimizer steps made of single ops."""
    sparse = work is not None and any(row.phase == "optimizer" and row.op in _SPARSE for row in work.rows)
    for update in patterns.updates:
        form = faster_form(update, on_device=step.device is not None)
        if form is None or (form == "fused" and sparse):
            continue
        if step.device is not None:
            found = _on_device(update, step.device, step)
        else:
            found = update_on_host(update, form, patterns, step, rank, limits, shares)
            if form == "lists" and found.in_ops < _MIN_IN_OPS * found.now:
                continue
        of_lists = step.device is not None and is_in_passes(update)
        low, cost = found.now - found.at_most, found.now - found.at_least
        if step.is_negligible(low):
            continue
        facts = facts_of(update, patterns, rank, on_device=step.device is not None) if update.body is None else []
        made_at = to_edit(rank, next((one.created_at for one in facts), None), "optim") if facts else None
        # torch refuses fused=True beside foreach=True.
        other = {"foreach": False} if form == "fused" and any(one.foreach for one in facts) else {}
        edit = AdvisedEdit.of(made_at, **{form: True}, **other) if update.body is None and form != "lists" else None
        source = f"{patterns.source}, per step"
        kernels = [Evidence.ms("its kernels", update.device_ns, source)] if update.device_ns is not None else []
        yield step.finding(
            # The cost is the most that is saved: half of what is between counts. A fused update refuses sparse
            # gradients, which save more where they fit.
            severity="info" if _sparse_fits(facts, patterns, rank) else step.severity((low + cost) / 2),
            cost=cost,
            saving=(low, cost),
            spent=loop_of(update.body, lines) or update.at,
            change=made_at,
            edit=edit,
            message=(
                f"{update.name} makes {update.ops:.0f} ops per step{_PASSES if of_lists else ''}: "
                f"{_SAVES[form]} saves up to {ms(cost)}."
            ),
            advice=(
                "Update lists of tensors (torch._foreach_add_ ...) instead of looping over parameters."
                if form == "lists"
                else f"torch.optim.{update.name}(..., {form}=True{', foreach=False' if other else ''})."
            ),
            evidence=(
                Evidence("ops of the optimizer", round(update.ops, 1), "", source),
                Evidence("of them over lists", round(update.foreach, 1), "", source),
                Evidence("of them fused", round(update.fused, 1), "", source),
                Evidence.ms("optimizer's step on the host", update.host_ns, source),
                Evidence.ms("of it in ops", update.op_ns, source),
                Evidence.ms("what remains at least", found.at_least, "this rule's estimate (perfkit explain)"),
                *kernels,
            ),
        )


_PASSES = ", each a pass over the memory of all parameters"
_SAVES: dict[Form, str] = {
    "fused": "one fused update",
    "foreach": "one call over all parameters",
    "lists": "an update of lists",
}


def _sparse_fits(facts: Sequence[OptimizerFacts], patterns: Patterns, rank: Rank | None) -> bool:
    """Whether sparse gradients change no result, and most elements are in tables of which a batch uses few rows."""
    if rank is None or not sparse_is_exact(facts, rank):
        return False
    in_tables = sum(one.rows * one.columns for one in little_used(patterns, rank))
    return in_tables > MAJORITY * sum(one.elements for one in facts)


def _on_device(update: OptimizerUpdate, device: DeviceTime, step: StepBudget) -> UpdateTimes:
    # The host's time counts only while the device waits for it.
    late = min(step.of_device(sum(device.causes.get(cause, 0) for cause in _LATE)), update.host_ns)
    kernels = min(update.device_ns or 0, step.wall_ns - late)
    remain = _LISTS_REMAIN if is_in_passes(update) else _KERNELS_REMAIN
    at_least, at_most = (round(idle * late + work * kernels) for idle, work in zip(_IDLE_REMAINS, remain, strict=True))
    return UpdateTimes(late + kernels, update.op_ns, at_least, at_most)
