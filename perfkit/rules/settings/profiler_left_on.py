"""The program's own torch profiler is on in every step.

Problem: torch.profiler records each op of each step. That takes time in the step, and again where the recording stops
and its events are turned into a table or a file; the events of a whole training fill the memory. `record_shapes`,
`profile_memory` and `with_stack` each record more per op.

How it shows: a torch profiler was on in most of the steps between which perfkit looked, and perfkit had not started it.
With `with_stack=True` before the first step, `perfkit run` finds no steps by itself: mark them, with `perfkit.profile`.

Causes: `with torch.profiler.profile(...)` around the whole training, without a schedule; `Trainer(profiler="pytorch")`,
`emit_nvtx()`, or a debug flag that stayed on.

Fix: do not train with it. Record a few steps, or let perfkit do it.

    with torch.profiler.profile(schedule=schedule(wait=20, warmup=2, active=3, repeat=1)) as prof:
        for batch in loader:
            train_step(batch)
            prof.step()

Saving: not known of this program, because its profiler keeps perfkit from recording the number of its ops. Measured for
1,800 events per step on one CPU, training of 24 small layers: 28% more per step without a flag and 44% with all three;
and 13 ms per step, with all three 43 ms, where the profiler stops. The step without it took 16 ms.

Source: measured with torch 2.13 on a CPU, 5 turns of 20 steps. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.rules._settings import first_call, is_on
from perfkit.run.records import Rank

ID = "profiler-left-on"

#: Arguments that record more per op.
_FLAGS = ("with_stack", "profile_memory", "record_shapes")


def check(rank: Rank) -> Iterator[Finding]:
    """Find a torch profiler of the program's own that is on while it trains, and the line that starts it."""
    if not is_on(rank, "torch.profiler_on"):
        return
    flags = [name for name in _FLAGS if rank.calls.get(name)]
    with_flags = f", with {', '.join(flags)} set in its source" if flags else ""
    yield Finding(
        severity="warning",
        message=f"The program's own torch profiler is on in every step{with_flags}.",
        advice="Do not train with it: give it a schedule of a few active steps, or leave it out and use perfkit's.",
        confidence="high",
        evidence=(
            Evidence.ms("cost", None, "the program's profiler keeps perfkit from counting the ops"),
            Evidence("flags", ", ".join(flags) or "none found", "", "the program's source"),
        ),
        change=first_call(rank, "profile", "emit_nvtx", *flags),
    )
