"""``perfkit explain``: what a rule detects, why, and how its saving is estimated; and the words of a diagnosis."""

from __future__ import annotations

import inspect

import typer

from perfkit import ledger
from perfkit.rules._engine import explain as explain_rule
from perfkit.rules._engine import find_rules

#: What can be explained beside rules: the text of each.
_TOPICS = {"ledger": inspect.getdoc(ledger) or ""}


def explain(
    rule: str | None = typer.Argument(None, help="A rule's id, as in a finding: sync-in-step; or ledger."),
    every: bool = typer.Option(False, "--all", help="Print all rules as one text."),
) -> None:
    """Explain a rule: the problem, how it shows, what to change, and how the saving is estimated.

    `perfkit explain ledger` explains what "at the limit", "claimed" and "unexplained" mean. Without a rule, list all.
    """
    if every:
        typer.echo("\n\n".join(explain_rule(known.id) for known in find_rules()))
    elif rule is None:
        for known in find_rules():
            typer.echo(f"{known.id:24} {known.explanation.splitlines()[0]}")
        for topic, text in _TOPICS.items():
            typer.echo(f"{topic:24} {text.splitlines()[0]}")
    elif rule in _TOPICS:
        typer.echo(f"{rule}: {_TOPICS[rule]}")
    else:
        typer.echo(explain_rule(rule))
