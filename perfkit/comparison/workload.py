"""Whether two runs did the same work, under the same settings, with the same losses."""

from __future__ import annotations

import math

from perfkit.comparison.results import Same
from perfkit.comparison.sides import Side
from perfkit.run.records import Rank

#: Two losses of the same training agree to this (relative): sums in another order differ in the last digits of
#: float32 (1e-7), and training amplifies that; a wrong computation is off by far more.
_SAME_LOSS = 1e-3

#: Settings of the process that change the step time by themselves.
_SETTINGS = ("torch.num_threads", "cpu_affinity", "cpu_count")


def work_changes(first: Side, second: Side) -> tuple[tuple[str, ...], Same]:
    """What differs in workload and settings, and whether the work is the same as far as both sides know."""
    before, after = _workload(first), _workload(second)
    common = [name for name in before if name in after]
    different = [name for name in common if before[name] != after[name]]
    sentences = [f"{name}: {before[name]} → {after[name]}" for name in different]
    was, is_ = settings_of(first.rank), settings_of(second.rank)
    sentences += [f"{name}: {was[name]} → {is_[name]}" for name in was if name in is_ and was[name] != is_[name]]
    same: Same = "different" if different else "same" if {"samples per step", "operations"} & set(common) else "unknown"
    return tuple(sentences), same


def _workload(side: Side) -> dict[str, str]:
    """What defines the work of a step: its samples, its operations, its device, its script."""
    facts: dict[str, str] = {}
    profiles = side.diagnosis.figures.kernel_profiles
    if profiles is not None and profiles.compute_capability is not None:
        facts["compute capability"] = profiles.compute_capability
    step, rank, trace = side.diagnosis.step, side.rank, side.diagnosis.figures.trace
    if step is not None and step.samples_per_step is not None:
        facts["samples per step"] = f"{step.samples_per_step:.4g}"
    if rank is not None:
        if rank.flops is not None and rank.flops.by_precision:
            # Two digits: the last batch of an epoch, or a longer sequence, is the same model.
            facts["operations"] = f"{sum(rank.flops.by_precision.values()):.2g} FLOP per step"
        facts["device"] = ", ".join(rank.devices) or "CPU"
        facts.update({f"dataset {loader.role}": loader.dataset for loader in rank.loaders})
    elif trace is not None:
        facts["device"] = ", ".join(trace.devices) or "CPU"
    if side.script is not None:
        facts["script"] = side.script
    return facts


def settings_of(rank: Rank | None) -> dict[str, str]:
    """What changes the step time without changing its work, by name: versions, threads, settings of loaders."""
    if rank is None:
        return {}
    facts = {f"version of {name}": version for name, version in rank.versions.items()}
    facts.update({name: rank.settings[name] for name in _SETTINGS if name in rank.settings})
    for loader in rank.loaders:
        at = f"DataLoader({loader.dataset})"
        facts[f"{at} num_workers"] = str(loader.num_workers)
        facts[f"{at} batch_size"] = str(loader.batch_size)
        facts[f"{at} pin_memory"] = str(loader.pin_memory)
    return facts


def not_alike(first: Side, second: Side) -> str:
    """What the two were not recorded alike in, as the beginning of a verdict; empty where nothing is known to differ.

    ``Not the same arguments (--batch 8 → --batch 16) and device (CPU → NVIDIA H100): ``
    """
    was, is_ = _conditions(first), _conditions(second)
    found = [f"{name} ({was[name]} → {is_[name]})" for name in was if name in is_ and was[name] != is_[name]]
    if not found:
        return ""
    named = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
    return f"Not the same {named}. "


def _conditions(side: Side) -> dict[str, str]:
    """The command, its arguments, the devices, and where times come from a trace how its window was recorded."""
    facts: dict[str, str] = {}
    if side.script is not None:
        facts["program"] = side.script
    if side.arguments is not None:
        facts["arguments"] = " ".join(side.arguments) or "none"
    trace = side.diagnosis.figures.trace
    if side.rank is not None:
        facts["device"] = ", ".join(side.rank.devices) or "CPU"
    elif trace is not None:
        facts["device"] = ", ".join(trace.devices) or "CPU"
    if trace is not None and side.rank is None:
        recorded = [name for name, has in (("stacks", trace.has_stacks), ("shapes", trace.has_shapes)) if has]
        recorded = [f"with {' and '.join(recorded)}"] if recorded else []
        # Marking steps or not, and stacks, change the time of a step; one step more does not.
        facts["window"] = " ".join(("of steps" if trace.steps else "without steps", *recorded))
    return facts


def compare_losses(first: Side, second: Side) -> tuple[Same, tuple[str, ...]]:
    """Whether the losses that both logged agree, step by step."""
    before, after = ({row.step: row.loss for row in side.rows if row.loss is not None} for side in (first, second))
    common = sorted(before.keys() & after.keys())
    if not common:
        return "unknown", ()
    different = [step for step in common if not _agree(before[step], after[step])]
    if not different:
        return "same", (f"losses agree to {_SAME_LOSS:g} over {len(common)} steps",)
    step = different[0]
    return "different", (
        f"losses differ from step {step} on: {before[step]:.6g} before, {after[step]:.6g} after: not the same result",
    )


def _agree(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=_SAME_LOSS, abs_tol=1e-6)
