"""Why a run has no steps, in a sentence."""

from __future__ import annotations

from perfkit.run.records import StartedBy


def no_step(started_by: StartedBy) -> str:
    """Why no step was seen, and what marks steps in a program that was started this way."""
    rounds = ""
    if started_by == "perfkit run":
        rounds = ", nor is there a loop in the script itself whose rounds take 1 ms or more"
        mark = (
            "to mark its steps, add `with perfkit.profile() as prof:` around the loop and iterate over prof.steps(...)"
        )
    else:
        mark = "mark where steps end with prof.steps(iterable) or prof.step()"
    return (
        "no step was seen: the loop was not reached, or it neither reads from a DataLoader, nor updates weights, nor "
        f"calls a module several times{rounds}; {mark}"
    )
