"""The options that `perfkit nsys` and `perfkit ncu` share, and how options of a tool become its command line."""

from __future__ import annotations

import shlex
from typing import Annotated, NamedTuple

import msgspec
import typer

from perfkit._stderr import print_message
from perfkit.errors import UsageError
from perfkit.nsight_runner.installed_tools import COMPLETE, InstalledTool


class NsightOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requested; None where it is left to perfkit. The annotations are the command line."""

    program: Annotated[
        list[str],
        typer.Argument(metavar="PROGRAM", help="train.py, python train.py, torchrun ... train.py, or any command."),
    ]
    module: Annotated[bool, typer.Option("-m", help="Run PROGRAM as a module, as in python -m.")] = False
    out: Annotated[
        str | None, typer.Option(help="Folder for the report and the run. Default: runs/<script>-<date>-<time>.")
    ] = None
    print_only: Annotated[bool, typer.Option("--print", help="Print the command without running it.")] = False
    schedule: Annotated[
        str | None,
        typer.Option(help="Record this window: wait,warmup,active[,repeat] in steps. Default: 10,2,3,1."),
    ] = None
    stop_after: Annotated[
        int | None, typer.Option(help="End the program cleanly after N steps.", metavar="N", min=1)
    ] = None
    force_overwrite: Annotated[
        bool, typer.Option("--force-overwrite", help="Replace a run and reports in the output folder.")
    ] = False
    plain: Annotated[bool, typer.Option("--plain", help="Start PROGRAM without perfkit in it.")] = False
    show_all: Annotated[
        bool, typer.Option("--all", help="Show all findings, not only the five most expensive ones.")
    ] = False


class ToolOption(NamedTuple):
    """One option of a tool, in words; ``requested`` by the user, else added by perfkit."""

    words: tuple[str, ...]
    requested: bool


def supported_words(options: list[ToolOption], tool: InstalledTool | None) -> list[str]:
    """The words of the options that the tool has; of all options where the tool is unknown.

    An option that perfkit added and an old tool lacks is left out, with a message.

    Raises:
        UsageError: the user requested an option that the tool does not have.
    """
    words: list[str] = []
    for option in options:
        name = option.words[0].partition("=")[0]
        if tool is None or tool.options is None or name in tool.options:
            words += option.words
            continue
        version = tool.version or "this version"
        available = f"it is in {tool.name} {COMPLETE[tool.name]}"
        if option.requested:
            raise UsageError(f"{tool.path} ({version}) has no {name}: {available}; install that or a later version")
        print_message(f"{tool.path} ({version}) has no {name}, so it is left out; {available}")
    return words


def split_words(option: str, text: str) -> list[str]:
    """The words of the tool's own options, which are passed on unchanged.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option} takes options as in a shell, got {text!r}: {error}") from None
