"""The optimizer updates parameter after parameter, op by op.

Problem: an update is a handful of elementwise ops on every parameter. One after another they cost an op's
overhead (and a kernel launch on a GPU) each, some thousand times per step, for arithmetic that one fused
kernel does in one pass.

How it shows: the range of the optimizer's step holds many single ops, hardly any of them `_foreach_` or
`_fused_` ones, and takes 5% of the step or more beyond what a fused update takes.

Causes: the default of torch's optimizers on a CPU (and with `foreach=False`); an optimizer of one's own
that loops over parameters.

Fix: let it update all parameters at once.

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    torch._foreach_lerp_(momenta, grads, 0.01)      # an optimizer of one's own: lists, no loop

Gain: the range's time without what is left of it: of an optimizer of torch's 10 to 40%, where no other
is fused; of one's own, with lists of tensors, 5 to 45%. On a GPU 10 to 50%, and no more than the device's
idle time and the update's own kernels.

Source: on one CPU, one thread, a fused Adam over 244 parameters of up to 4,096 numbers takes 12 to 18% of
the loop's time; Lion with lists of tensors 10 to 40%. Updates whose ops take longer than 100 µs on average are
limited by memory and gain little: they are not told. At least 50 single ops per step. From 5% of the step on
(see input-bound). The GPU side: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.device import IdleCause
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.patterns import OptimizerUpdate, Patterns
from perfkit.rules._pattern_cost import op_part, where
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, busiest_device, device_part, severity_of, whole_of

ID = "unfused-optimizer"

#: Fewer single ops are one group's bookkeeping.
_OPS = 50
#: A mean op this long moves a megabyte or more: memory is its limit, and stays it when ops are fused.
_LARGE_NS = 100_000
#: Idle of a device that an optimizer's loop makes: launches have a class of their own.
_LATE: tuple[IdleCause, ...] = ("optimizer", "launch call", "launch latency")
#: Of all ops, those over lists: from this share on the update is a list update with some single ops beside it.
_LISTS = 0.2
#: What stays: (at the high end of the gain, at the low end), see above.
_STAYS = {"torch": (0.1, 0.4), "own": (0.05, 0.45), "device": (0.1, 0.5)}


def check(measured: Measured) -> Iterator[Finding]:
    """Find optimizer steps made of single ops."""
    whole, patterns = whole_of(measured), measured.patterns
    if whole is None or patterns is None:
        return
    for update in patterns.updates:
        single = update.ops - update.foreach - update.fused
        if (
            single < _OPS
            or update.op_ns > _LARGE_NS * update.ops
            or update.foreach + update.fused > _LISTS * update.ops
        ):
            continue
        low_ns, high_ns = _gain(update, measured, patterns, whole)
        if high_ns >= NEGLIGIBLE * whole.wall_ns:
            yield _finding(update, (low_ns, high_ns), measured, patterns, whole)


def _gain(update: OptimizerUpdate, measured: Measured, patterns: Patterns, whole: Whole) -> tuple[int, int]:
    device = busiest_device(measured)
    if device is not None:
        stays = _STAYS["device"]
        # The host's time counts as far as the device waits for it.
        late = sum(device.causes.get(cause, 0) for cause in _LATE)
        idle_ns = min(device_part(late, device, whole), update.host_ns)
        total_ns = min(whole.wall_ns, idle_ns + (update.device_ns or 0))
    else:
        stays = _STAYS["own" if update.body is not None else "torch"]
        total_ns = op_part(update.host_ns, patterns, whole)
        phase = measured.step.phases_ns.optimizer if measured.step is not None else None
        if phase is not None:
            # The clock's own phase: recording makes small ops slower, so an optimizer of them looks larger or smaller.
            every_ns = max(1, sum(one.host_ns for one in patterns.updates))
            total_ns = min(whole.wall_ns, round(phase * update.host_ns / every_ns))
    return round(total_ns * (1 - stays[1])), round(total_ns * (1 - stays[0]))


def _finding(
    update: OptimizerUpdate, gain: tuple[int, int], measured: Measured, patterns: Patterns, whole: Whole
) -> Finding:
    low_ns, high_ns = gain
    source = f"{patterns.source}, per step"
    evidence = [
        Evidence("ops of the optimizer", round(update.ops, 1), "", source),
        Evidence("of them over lists", round(update.foreach, 1), "", source),
        Evidence("of them fused", round(update.fused, 1), "", source),
        Evidence("optimizer's step on the host", round(update.host_ns / 1e6, 3), "ms", source),
    ]
    if update.device_ns is not None:
        evidence.append(Evidence("its kernels", round(update.device_ns / 1e6, 3), "ms", source))
    own = update.body is not None
    return Finding(
        rule=ID,
        severity=severity_of(high_ns, whole),
        message=(
            f"{update.name} updates parameter after parameter: {update.ops:.0f} ops per step; at once, "
            f"they would take up to {ms(high_ns)} less."
        ),
        advice=(
            "Update lists of tensors (torch._foreach_mul_, torch._foreach_add_ ...) instead of looping over parameters."
            if own
            else f"torch.optim.{update.name}(..., fused=True), or foreach=True where it has no fused form."
        ),
        confidence="medium",
        evidence=tuple(evidence),
        cost_ns=high_ns,
        saving_low_ns=low_ns,
        saving_high_ns=high_ns,
        **where(update.body or update.at, measured, loop=own),
    )
