"""``perfkit explain``: what a rule detects, why, and how its saving is estimated."""

from __future__ import annotations

import typer

from perfkit.rules._engine import explain as explain_rule
from perfkit.rules._engine import find_rules


def explain(
    rule: str | None = typer.Argument(None, help="A rule's id, as in a finding: sync-in-step."),
    every: bool = typer.Option(False, "--all", help="Print all rules as one text."),
) -> None:
    """Explain a rule: the problem, how it shows, what to change, and how the saving is estimated.

    Without a rule, list all of them.
    """
    if every:
        typer.echo("\n\n".join(explain_rule(known.id) for known in find_rules()))
    elif rule is None:
        for known in find_rules():
            typer.echo(f"{known.id:24} {known.explanation.splitlines()[0]}")
    else:
        typer.echo(explain_rule(rule))
