"""Completion of commands and options in a shell, switched on as the documentation of click says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from perfkit.errors import UsageError


class _Completion(NamedTuple):
    """The line that switches completion on, and the file in the home folder that the shell reads at its start."""

    line: str
    file: str


_COMPLETIONS = {
    "bash": _Completion('eval "$(_PERFKIT_COMPLETE=bash_source perfkit)"', ".bashrc"),
    # zsh has no completion before compinit.
    "zsh": _Completion('autoload -Uz compinit && compinit && eval "$(_PERFKIT_COMPLETE=zsh_source perfkit)"', ".zshrc"),
    "fish": _Completion("_PERFKIT_COMPLETE=fish_source perfkit | source", ".config/fish/completions/perfkit.fish"),
}


def completion() -> _Completion:
    """How the user's shell completes.

    Raises:
        UsageError: $SHELL names none that can.
    """
    shell = os.environ.get("SHELL", "")
    found = _COMPLETIONS.get(Path(shell).name)
    if found is None:
        raise UsageError(
            f"$SHELL must be {', '.join(_COMPLETIONS)}, the shells that perfkit completes in; got {shell!r}"
        )
    return found


def install() -> str:
    """Switch it on in new shells, and say where.

    Raises:
        UsageError: as `completion`, or the file cannot be written.
    """
    line, name = completion()
    file = Path.home() / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or line not in file.read_text("utf-8").splitlines():
            with file.open("a", encoding="utf-8") as end:
                end.write(f"\n{line}\n")
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror}); add this line to it: {line}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} must be UTF-8; add this line to it: {line}") from error
    return f"Completion is installed in {file}. It takes effect in new shells."
