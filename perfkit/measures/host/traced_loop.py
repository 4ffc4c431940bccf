"""Whether the steps that were recorded in detail are those of the loop in which most of the run trains."""

from __future__ import annotations

from collections import Counter

from perfkit._format import shown_location
from perfkit._location import Location
from perfkit.run.records import Lines

#: Samples of backwards below which nothing is said: a fifth of their error decides nothing.
_FEW = 20
#: The share of them that the recorded steps' lines have at least, where these are the loop's (chosen).
_OWN = 0.25


def other_loop(lines: Lines | None) -> str | None:
    """A sentence where the step that was traced by line is of another loop; None where it is not, or not known.

    A program that trains a teacher first has two loops, and windows are opened in the first steps.
    """
    if lines is None or not lines.traced:
        return None
    samples: Counter[Location] = Counter()
    for row in lines.rows:
        if row.worker is None and row.phase == "backward":
            samples[row.at] += row.samples
    traced = {(row.file, row.line) for row in lines.traced}
    own = {at: count for at, count in samples.items() if (at.file, at.line) in traced}
    if not own or samples.total() < _FEW or sum(own.values()) >= _OWN * samples.total():
        return None
    seen, most = max(own, key=lambda at: own[at]), samples.most_common(1)[0][0]
    return (
        f"the recorded steps are of the loop whose backward is at {shown_location(seen)}, and most of the run trains "
        f"at {shown_location(most)}: record later steps (--schedule WAIT,WARMUP,ACTIVE,REPEAT)"
    )
