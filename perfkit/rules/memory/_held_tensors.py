"""Tensors that stay alive from step to step: which of them to report, and the line that stores them."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit._location import Location
from perfkit.run.records import KeptTensors, Lines


def largest_held(kept: Sequence[KeptTensors]) -> KeptTensors | None:
    """The first whose holder is known, else the first; of those with a graph, if there are any: it holds the others."""
    ordered = sorted(kept, key=lambda one: not one.graph)
    graphs = [one for one in ordered if one.graph] or ordered
    return next((one for one in graphs if one.places), next(iter(graphs), None))


def storing_line(kept: KeptTensors, lines: Lines | None) -> Location | None:
    """The line that stores the tensors: of several that could, one that ran in the step traced by line."""
    ran = {(line.file, line.line) for line in (lines.traced if lines is not None else ())}
    return next((at for at in kept.places if (at.file, at.line) in ran), next(iter(kept.places), None))
