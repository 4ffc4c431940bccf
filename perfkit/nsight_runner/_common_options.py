"""The options that `perfkit nsys` and `perfkit ncu` share, and how options of a tool become its command line."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import msgspec

from perfkit._stderr import print_message
from perfkit.errors import UsageError
from perfkit.nsight_runner.installed_tools import COMPLETE, InstalledTool


class NsightOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requested of either tool, as `perfkit nsys --help` has it; None where it is left to perfkit."""

    program: tuple[str, ...]
    module: bool = False
    out: str | None = None
    print_only: bool = False
    schedule: str | None = None
    stop_after: int | None = None
    force_overwrite: bool = False
    plain: bool = False
    show_all: bool = False


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
