"""Rules: one problem per file, numbers in, findings out.

A rule is a module with an ``ID``, a docstring that `perfkit explain ID` prints (problem, how it shows,
causes, fix, gain, source), and ``check(measured)``, which yields one `Finding` per problem found. A rule
reads `Measured` and nothing else, and imports no other rule. To add one: write the file, name it below,
test it on the smallest `Measured` that shows the problem and on a healthy one.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from typing import Protocol

from perfkit.errors import UsageError
from perfkit.findings import Finding
from perfkit.measures.results import Measured
from perfkit.rules import (
    cannot_tell,
    compute_bound,
    copies_dominate,
    exposed_communication,
    input_bound,
    launch_bound,
    many_small_ops,
    sync_in_step,
)


class Rule(Protocol):
    """What a rule module offers."""

    ID: str

    def check(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each place where the problem shows; never raise for parts that are absent."""
        ...


#: Rules that look for a problem.
PROBLEMS: tuple[Rule, ...] = (
    input_bound,
    sync_in_step,
    many_small_ops,
    copies_dominate,
    exposed_communication,
    launch_bound,
)

#: Rules that speak only where no problem with a price was found: the healthy ends, and the open one.
VERDICTS: tuple[Rule, ...] = (compute_bound, cannot_tell)

RULES: tuple[Rule, ...] = (*PROBLEMS, *VERDICTS)

#: rule id -> ids of the rules that explain it, nearest first: with both found, only the cause is to be corrected.
EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    # A device that waits for launches while a loop of small ops makes them waits for that loop.
    launch_bound.ID: (many_small_ops.ID,),
}


def explain(rule_id: str) -> str:
    """What `perfkit explain` prints about a rule.

    Raises:
        UsageError: no rule has this id; the text names the nearest ones.
    """
    for rule in RULES:
        if rule_id == rule.ID:
            return f"{rule.ID}: {inspect.getdoc(rule)}"
    ids = [rule.ID for rule in RULES]
    near = difflib.get_close_matches(rule_id, ids, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(ids)}"
    raise UsageError(f"no rule is called {rule_id!r}: {hint}")
