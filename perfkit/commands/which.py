"""``perfkit which``: which tool answers a question, with the command and what to look for."""

from __future__ import annotations

import shutil
import textwrap

import click

from perfkit.errors import UsageError
from perfkit.which import ANSWERS, Answer, as_markdown, find_answers


@click.command
@click.argument("question", nargs=-1)
@click.option("--markdown", is_flag=True, help="Print the whole table as markdown.")
def which(question: tuple[str, ...], markdown: bool) -> int:
    """Find the tool that answers a question about training speed, its command and what to look for; offline.

    QUESTION: Find the tool for this question, in your own words. Default: list all.
    """
    if markdown:
        if question:
            raise UsageError("--markdown prints the whole table: give no question with it")
        click.echo(as_markdown(), nl=False)
        return 0
    if not question:
        click.echo(_wrapped("Ask in your own words, as in: perfkit which my GPU is idle half of the time") + "\n")
        for answer in ANSWERS:
            click.echo(f"{_wrapped(answer.question, '  ')}\n      {answer.tool}")
        return 0
    found = find_answers(" ".join(question))
    if not found:
        click.echo(
            _wrapped(
                "No entry fits this question. Name what is slow (loading data, saving, a kernel, generation), or what "
                "you see (an idle GPU, out of memory, spikes, a trace file), as in: perfkit which my dataloader is "
                "slow. `perfkit which` alone lists all entries."
            )
        )
        return 0
    _show(found[0].answer)
    if found[1:]:
        click.echo("\nThe next best entries:")
    for match in found[1:]:
        click.echo(f"{_wrapped(match.answer.question, '  ')}\n      {match.answer.command}")
    return 0


def _show(answer: Answer) -> None:
    # The command stays on one line so that it can be copied.
    click.echo(f"{_wrapped(answer.question)}\n\n  {answer.tool}\n  {answer.command}\n")
    click.echo(_wrapped(f"Look for: {answer.look_for}"))
    click.echo()
    click.echo(_wrapped(f"Why this one: {answer.why}"))


def _wrapped(text: str, indent: str = "") -> str:
    width = min(100, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
