"""``perfkit which``: which tool answers a question, with the command and what to look for."""

from __future__ import annotations

import shutil
import textwrap

import typer

from perfkit.errors import UsageError
from perfkit.which import ANSWERS, Answer, as_markdown, find_answers


def which(
    question: list[str] = typer.Argument(
        None, help="Find the tool for this question, in your own words. Default: list all."
    ),
    markdown: bool = typer.Option(False, "--markdown", help="Print the whole table as markdown."),
) -> int:
    """Find the tool that answers a question about training speed, its command and what to look for; offline."""
    if markdown:
        if question:
            raise UsageError("--markdown prints the whole table: give no question with it")
        typer.echo(as_markdown(), nl=False)
        return 0
    if not question:
        typer.echo("Ask in your own words, as in: perfkit which my GPU is idle half of the time\n")
        _list()
        return 0
    found = find_answers(" ".join(question))
    if not found:
        typer.echo("No entry matches this question. The entries are:\n")
        _list()
        return 0
    _show(found[0].answer)
    for match in found[1:]:
        typer.echo(f"\nOr: {match.answer.question} -> {match.answer.tool}\n    {match.answer.command}")
    return 0


def _list() -> None:
    width = max(len(answer.tool) for answer in ANSWERS)
    for answer in ANSWERS:
        typer.echo(f"  {answer.tool:<{width}}  {answer.question}")


def _show(answer: Answer) -> None:
    # The command stays on one line so that it can be copied.
    width = min(100, shutil.get_terminal_size().columns)
    typer.echo(f"{answer.question}\n\n  {answer.tool}\n  {answer.command}\n")
    typer.echo(textwrap.fill(f"Look for: {answer.look_for}", width, break_long_words=False, break_on_hyphens=False))
    typer.echo()
    typer.echo(textwrap.fill(f"Why this one: {answer.why}", width, break_long_words=False, break_on_hyphens=False))
