"""What an optimizer's update takes, and what remains of it in a faster form: fused, foreach, or lists by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from perfkit.ledger.ledger import NEAR_LIMIT
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.patterns import OptimizerUpdate, Patterns
from perfkit.measures.results.work import OpShares
from perfkit.run.records import MachineLimits, OptimizerFacts, Rank

#: From this share of ops over lists on, the update is one of lists with some single ops (chosen).
_LISTS = 0.2
#: Classes of torch that have no fused form on a CPU, but foreach=True (torch 2.13).
_WITH_LISTS = frozenset({"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"})
#: Classes of torch whose update of lists makes several passes more than their fused form on CUDA. SGD's may be one op.
_FUSED_ON_CUDA = frozenset({"Adam", "AdamW"})
#: A fused call has the overhead of this many ops of its loop, and more for each tensor: measured.
_FUSED_OPS = 12.0
#: Bytes of an element; other types are at most as large.
_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

Form = Literal["fused", "foreach", "lists"]
#: What an op over lists of tensors saves of each single op that it replaces, beside the Python between them: at most
#: and at least, in overheads of an op on this machine. Measured (perfkit/rules/CALIBRATION.md).
_OF_LISTS = (1.5, 0.5)
#: The overhead of an op where the machine's was not measured; of the one of the calibration it is 470 ns.
_OP_NS = 500


class FusedUpdate(NamedTuple):
    """A fused update on a CPU: single ops that cost as much per tensor, and how often it goes over the parameters."""

    ops_per_tensor: float
    passes: int


#: Classes of torch that have a fused form on a CPU (torch 2.4 to 2.13). Passes: parameters and states are read and
#: written, gradients read; SGD's state is its momentum. The number of steps is a tensor but for SGD.
FUSED = {
    "Adam": FusedUpdate(1.6, 7),
    "AdamW": FusedUpdate(1.6, 7),
    "Adagrad": FusedUpdate(1.6, 5),
    "SGD": FusedUpdate(0.6, 5),
}


class UpdateTimes(NamedTuple):
    """What an update takes, the part of it that is in ops, and the least and most that remains of it in a faster form;
    ns per step."""

    now: int
    in_ops: int
    at_least: int
    at_most: int


def is_in_passes(update: OptimizerUpdate) -> bool:
    """Whether an update of lists goes over memory once for each of its ops, where a fused one on CUDA goes once."""
    is_library = update.name in _FUSED_ON_CUDA and update.body is None
    return is_library and not update.fused and update.foreach > _LISTS * update.ops


def faster_form(update: OptimizerUpdate, *, on_device: bool = False) -> Form | None:
    """The faster form of this update; None where it has none, uses it, or makes no ops."""
    if not update.ops or update.foreach + update.fused > _LISTS * update.ops:
        return "fused" if on_device and is_in_passes(update) else None
    if update.body is not None:
        return "lists"
    if update.name in FUSED:
        return "fused"
    return "foreach" if update.name in _WITH_LISTS else None


def facts_of(
    update: OptimizerUpdate, patterns: Patterns, rank: Rank | None, *, on_device: bool = False
) -> list[OptimizerFacts]:
    """The optimizers that this update may be of: the one whose place among those of its class, by tensors, is its own.

    An update has the more ops the more tensors it updates, and one of lists the longer kernels the more elements. All
    of the class where there are not as many as updates.
    """
    of_lists = on_device and is_in_passes(update)
    alike = [one for one in patterns.updates if one.name == update.name]
    alike = [one for one in alike if faster_form(one, on_device=on_device) is not None]
    alike.sort(key=lambda one: -((one.device_ns or 0) if of_lists else one.ops))
    facts = [one for one in (rank.optimizers if rank is not None else ()) if one.kind == update.name]
    slow = [one for one in facts if not one.fused and (of_lists or not one.foreach)]
    facts = sorted(slow or facts, key=lambda one: -(one.elements if of_lists else one.tensors))
    return [facts[alike.index(update)]] if len(facts) == len(alike) and update in alike else facts


def update_on_host(
    update: OptimizerUpdate,
    form: Form,
    patterns: Patterns,
    step: StepBudget,
    rank: Rank | None,
    limits: MachineLimits | None,
    shares: OpShares | None,
) -> UpdateTimes:
    """What an update on a CPU takes, and what remains of it in a form that is faster (see `faster_form`)."""
    now = _now(update, patterns, step)
    share = shares.shares.get("optimizer") if shares is not None else None
    in_ops = now * (share if share is not None else min(1.0, update.op_ns / max(1, update.host_ns)))
    if form == "fused":
        least, most = _fused(update, now, in_ops, facts_of(update, patterns, rank), limits)
    else:
        # Recording an op lengthens the Python around it, and hardly the op.
        timed, recorded_ns = step.phase("optimizer"), shares.phases_ns.get("optimizer", 0) if shares is not None else 0
        if timed is not None and timed.ns:
            in_ops = min(now, in_ops * max(1.0, recorded_ns / timed.ns))
        op_ns = limits.op_ns if limits is not None else _OP_NS
        least, most = (max(0.0, in_ops - part * op_ns * update.ops) for part in _OF_LISTS)
    return UpdateTimes(now, round(in_ops), min(now, round(least)), min(now, round(most)))


def _now(update: OptimizerUpdate, patterns: Patterns, step: StepBudget) -> int:
    """The time of the update, as timed by the step clock: recording slows small ops more, so shares may change."""
    phase = step.typical.phases_ns.optimizer if step.typical is not None else None
    if phase is None:
        return step.of_pattern(update.host_ns, patterns)
    return min(step.wall_ns, round(phase * update.host_ns / max(1, sum(one.host_ns for one in patterns.updates))))


def _fused(
    update: OptimizerUpdate, now: int, in_ops: float, facts: Sequence[OptimizerFacts], limits: MachineLimits | None
) -> tuple[float, float]:
    fused = FUSED[update.name]
    # Cold caches and other programs slow the overhead of a fused call as they slow that of the single ops.
    op_ns = (now - in_ops) / update.ops + (limits.op_ns if limits is not None else 0)
    overhead = op_ns * (_FUSED_OPS + fused.ops_per_tensor * sum(one.tensors for one in facts))
    if limits is None or not facts:
        # Not known what the ops themselves have to take: all of it may remain.
        return overhead, overhead / NEAR_LIMIT + in_ops
    moved = sum(one.elements * max((_SIZES.get(dtype, 8) for dtype in one.dtypes), default=8) for one in facts)
    pass_ns = limits.op_limit_ns(0, moved * fused.passes, "float32") - limits.op_ns
    return overhead + pass_ns, (overhead + pass_ns) / NEAR_LIMIT
