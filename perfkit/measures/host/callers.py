"""From which of the user's lines each function of theirs was called, by the samples of a run."""

from __future__ import annotations

from collections import Counter, defaultdict

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.measures.host.phase_scale import is_tree, samples_below
from perfkit.run.records import CallPaths, Lines

#: A function, by its file and its name.
Function = tuple[str, str | None]


def sampled_callers(lines: Lines, worker: str | None = None) -> dict[Function, Location]:
    """Function -> the line of another function of the user's from which it was reached most often.

    Of the training process (``worker``: None) a function counts whose own lines were never sampled, too: call paths
    show what calls it.
    """
    found: dict[Function, Location] = {}
    if worker is None and lines.paths is not None and is_tree(lines.paths):
        found |= _on_paths(lines.paths)
    own = [row for row in lines.rows if row.worker == worker]
    # Rows are sorted by samples: the first one of a function is the last to be set.
    found |= {(row.file, row.function): row.called_from for row in reversed(own) if row.called_from is not None}
    return found


def _on_paths(paths: CallPaths) -> dict[Function, Location]:
    below = samples_below(paths)
    #: Node -> the innermost node of the user's from it outwards; -1: none.
    users = [-1] * len(below)
    called: dict[Function, Counter[Location]] = defaultdict(Counter)
    for node, parent in enumerate(paths.parent):
        outer = users[parent] if parent >= 0 else -1
        frame = paths.frames[paths.frame[node]]
        users[node] = node if frame.owner == USER else outer
        if frame.owner == USER and outer >= 0:
            caller = paths.frames[paths.frame[outer]]
            if (caller.file, caller.function) != (frame.file, frame.function):
                called[frame.file, frame.function][caller] += below[node]
    return {function: counted.most_common(1)[0][0] for function, counted in called.items()}
