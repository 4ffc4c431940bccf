"""``perfkit explain``: what a rule detects, why, and how its saving is estimated; and the words of a diagnosis."""

from __future__ import annotations

import inspect

import click

from perfkit import ledger, trial
from perfkit.measures import memory
from perfkit.rules._engine import explain as explain_rule
from perfkit.rules._engine import find_rules
from perfkit.trial.catalog import KINDS, find_changes

#: What can be explained beside rules: the text of each.
_TOPICS = {
    "ledger": inspect.getdoc(ledger) or "",
    "memory": inspect.getdoc(memory) or "",
    "try": inspect.getdoc(trial) or "",
}


@click.command
@click.argument("rule", required=False)
@click.option("--all", "every", is_flag=True, help="Print all rules as one text.")
def explain(rule: str | None, every: bool) -> None:
    """Explain a rule: the problem, how it shows, what to change, and how the saving is estimated.

    `perfkit explain ledger` explains what "at the limit", "claimed" and "unexplained" mean; `perfkit explain changes`
    lists what `perfkit run --with` can apply without an edit, `perfkit explain try` how it is measured, and `perfkit
    explain memory` how memory is. Without a rule, list all.

    RULE: A rule's id, as in a finding: sync-in-step; or ledger, memory, changes, try, or the name of a change: workers.
    """
    if every:
        click.echo("\n\n".join(explain_rule(known.id) for known in find_rules()))
    elif rule is None:
        for known in find_rules():
            click.echo(f"{known.id:24} {known.explanation.splitlines()[0]}")
        for topic, text in _TOPICS.items():
            click.echo(f"{topic:24} {text.splitlines()[0]}")
        click.echo(f"{'changes':24} What can be applied to a program without an edit.")
    elif rule == "changes":
        for change in find_changes().values():
            name = change.id if change.parse is None else f"{change.id}={change.placeholder}"
            click.echo(f"{name:24} {change.title} ({change.kind}).")
    elif rule in find_changes():
        change = find_changes()[rule]
        click.echo(f"{change.id}: {change.explanation}\n\n    {change.lines.format(value=change.placeholder)}\n")
        click.echo(f"Answers: {', '.join(change.answers)}. Its kind is {change.kind}: {KINDS[change.kind]}.")
        if change.toggle:
            click.echo("It can be switched off and on between any two steps, so one process measures both.")
        if change.slow_start:
            click.echo("Its first steps take long, so perfkit try tries it after the others.")
    elif rule in _TOPICS:
        click.echo(f"{rule}: {_TOPICS[rule]}")
    else:
        click.echo(explain_rule(rule))
