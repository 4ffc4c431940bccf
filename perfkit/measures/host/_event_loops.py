"""Lines that run an event loop around the model: what they wait for in its selector is the next request.

A thread that is in its event loop's selector has nothing to do. Where the model runs inside that loop, as in a service,
no step of work is under way then. Where the step starts a loop of its own (`asyncio.run(fetch())` for a reward), the
model runs outside of it, and the step waits.
"""

from __future__ import annotations

from perfkit._location import Location
from perfkit.run.records import Lines

#: What an event loop waits in, as the innermost library: asyncio's own, and so tornado's and uvicorn's.
_SELECTOR = "selectors"


def waits_for_requests(within: str) -> bool:
    """Whether time in these libraries (`LineRow.within`) is an event loop's that has nothing to do."""
    names = within.split(" > ")
    return names[-1] == _SELECTOR and "asyncio" in names[:-1]


def lines_around_the_model(lines: Lines) -> set[Location]:
    """The lines from which a sampled call of a model was reached, at any depth.

    A function that calls the model may be in no sample itself; the step that is traced by line knows who calls it.
    """
    callers: dict[tuple[str, str], Location] = {}
    for traced in lines.traced:
        for by in traced.callers:
            if (by.file, by.function) != (traced.file, traced.function):
                callers[traced.file, traced.function] = by
    for row in reversed(lines.rows):
        if row.called_from is not None:
            callers[row.file, row.function] = row.called_from
    around: set[Location] = set()
    for row in lines.rows:
        if any("torch.nn" in within.split(" > ") for within in row.within):
            at = row.called_from
            while at is not None and at not in around:
                around.add(at)
                at = callers.get((at.file, at.function or ""))
    return around
