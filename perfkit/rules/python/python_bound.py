"""Plain Python runs in the step while nothing is computed.

Problem: the interpreter takes 20 to 100 ns for each small thing it does, and no op of torch's runs
meanwhile: on a GPU the device runs out of work, on a CPU one core computes at a hundredth of its speed.

How it shows: 5% of the step or more passes in the user's own lines (and what they call of Python's
library) without an op, a fetch, a validation, a log, a checkpoint or a garbage collection, and not
ahead of the model, where it would make its inputs (`cpu-preprocessing`).

Causes: a metric or an edit distance in loops over lists; tensors turned into lists and back; tables
computed anew in every call of forward; a search or a sampling written for single items.

Fix: one call over all items, less often, or beside the training.

    wrong = (scores.argmax(-1) != labels).float().mean()     # not: a loop over scores.tolist()

    self.register_buffer("angles", make_angles(length))      # once, not in every forward

    if step % 100 == 0:                                      # a metric that people read
        report(edit_distance(...))

Gain: at most all of that time, with the error of sampling (one deviation of the count of samples) and a
quarter more: a sample that is due shortly before an op is taken in the op, where Python gives its lock away,
and three programs gained 1.07, 1.31 and 1.38 times what was sampled. At least 85% of it: what a vectorised
form leaves was 3 to 7% on the six loops that many-small-ops was measured on; 15% leaves room for worse ones.

Source: time is sampled (every 10 ms, outside of windows); which lines call ops is known from the step
for lines: a line that is in its ops for more than 5% of its time is not counted. From 5% of the
step on, and from 10 samples on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import host_evidence, in_typical_step, work_of
from perfkit.rules._step_budget import NEGLIGIBLE, severity_of, whole_of, with_beyond

ID = "python-bound"

#: What is left at most when Python became one call (see above).
_STAYS = 0.15
#: What samples miss of it, as an error (see above).
_UNSEEN = 0.25


def check(measured: Measured) -> Iterator[Finding]:
    """Find the user's own Python in the step."""
    whole = whole_of(measured)
    work = work_of(measured, "python")
    if whole is None or work is None:
        return
    cost_ns = min(whole.wall_ns, in_typical_step(measured, work.host_ns))
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    line = work.lines[0]
    high_ns = with_beyond(cost_ns, measured, whole, math.hypot(_UNSEEN, 1 / math.sqrt(work.samples)))
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Plain Python takes {ms(cost_ns)} of the {ms(whole.wall_ns)} {whole.per} "
            f"({percent(cost_ns, whole.wall_ns)}), most of it in {line.function}; no op runs meanwhile."
        ),
        advice=f"Do what {line.function} does in one call over all items, once ahead of training, or less often.",
        confidence="high" if work.samples >= 100 else "medium",
        evidence=(
            *host_evidence(work),
            Evidence("low end of the gain", 85, "% of it", "a vectorised form leaves at most 15%"),
        ),
        file=line.file,
        line=line.line,
        function=line.function,
        cost_ns=cost_ns,
        saving_low_ns=round((1 - _STAYS) * cost_ns),
        saving_high_ns=high_ns,
    )
