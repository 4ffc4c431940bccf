"""Validation takes a large part of the training's time.

Problem: the validation set is gone through so often that training waits for it most of the time, and
two answers so close together tell hardly more than one.

How it shows: validation takes 20% of the mean step or more, steps with a validation included.

Causes: eval_steps or val_check_interval as small as in a first trial; a validation set as large as the
training set; training steps that became faster while validation did not.

Fix: less often, on a part of the set, or with larger batches: nothing is kept for a backward.

    if step % 1000 == 0:                                       # not: % 8
        validate(model, held_out)

    Trainer(val_check_interval=1.0, limit_val_batches=50)      # Lightning

    DataLoader(held_out, batch_size=256)                       # and torch.inference_mode() around it

Gain: at most all of it, and on a CPU 15% more, since the rest then finds its caches as it left them. At
least three quarters: a quarter as often, or as much.

Source: the phase is measured, not sampled. 20% is a choice: validating a tenth of the data after each epoch
takes about 4% of the time (a forward is a third of a step), and 20% still allows a validation set of half
the training set's size.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import LESS_OFTEN, mean_step, phase_of_mean_step
from perfkit.rules._step_budget import severity_of, with_beyond

ID = "validation-too-often"

#: The share of the mean step from which validation is told (see above).
_SHARE = 0.2


def check(measured: Measured) -> Iterator[Finding]:
    """Find a large part of the time in validation."""
    whole = mean_step(measured)
    training = measured.step is not None and any(
        getattr(measured.step.phases_ns, phase) for phase in ("backward", "optimizer")
    )
    if whole is None or not training:
        return
    cost_ns = min(whole.wall_ns, phase_of_mean_step(measured, "validation"))
    if cost_ns < _SHARE * whole.wall_ns:
        return
    place = _place(measured)
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Validation takes {ms(cost_ns)} of the mean step of {ms(whole.wall_ns)} "
            f"({percent(cost_ns, whole.wall_ns)}), steps without one included."
        ),
        advice=(
            "Validate a quarter as often, on a part of the set, or with larger batches under torch.inference_mode()."
        ),
        confidence="high",
        evidence=(Evidence("validation", round(cost_ns / 1e6, 3), "ms", whole.source),),
        file=place.file if place else None,
        line=place.line if place else None,
        function=place.function if place else None,
        cost_ns=cost_ns,
        saving_low_ns=round(LESS_OFTEN * cost_ns),
        saving_high_ns=with_beyond(cost_ns, measured, whole),
    )


def _place(measured: Measured) -> Location | None:
    """The line of the training function from which the hottest line of validation was reached, else that line."""
    rows = [row for row in measured.lines.rows if row.worker is None] if measured.lines is not None else []
    validating = sorted(
        (row for row in rows if row.phase == "validation"), key=lambda row: (row.owner != "user", -row.samples)
    )
    if not validating:
        return None
    training = {(row.file, row.function) for row in rows if row.phase in ("backward", "optimizer")}
    callers: dict[tuple[str, str | None], Location | None] = {
        (row.file, row.function): row.called_from for row in reversed(rows)
    }
    row = validating[0]
    place, above = row.at, row.called_from
    seen = set()
    while above is not None and above not in seen and (place.file, place.function) not in training:
        seen.add(above)
        place, above = above, callers.get((above.file, above.function))
    return place
