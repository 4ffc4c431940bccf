"""``perfkit explain``: what a rule looks for, why, and how its gain is estimated."""

from __future__ import annotations

import typer

from perfkit.rules import RULES
from perfkit.rules import explain as explain_rule


def explain(
    rule: str | None = typer.Argument(None, help="A rule's id, as in a finding: sync-in-step."),
    every: bool = typer.Option(False, "--all", help="All rules, as one text."),
) -> None:
    """Say what a rule looks for, how it shows, what to change, and how the gain is estimated.

    Without a rule, list them.
    """
    if every:
        typer.echo("\n\n".join(explain_rule(known.ID) for known in RULES))
    elif rule is None:
        for known in RULES:
            typer.echo(f"{known.ID:24} {(known.__doc__ or '').strip().splitlines()[0]}")
    else:
        typer.echo(explain_rule(rule))
