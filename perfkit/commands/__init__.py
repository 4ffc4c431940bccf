"""The command line: one subcommand per file, and `main`, which turns every bad input into one line.

Exit codes: 0 done, whatever was found; 1 a gate failed; 2 bad input; `perfkit run` returns the script's own. A command
writes its result to stdout and everything else to stderr.
"""

# ruff: noqa: E402 - the clock is read before anything is loaded
from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

#: Processor time of the process before it loads perfkit: what `perfkit run` has used from here on is its own cost.
BEGAN_NS = time.process_time_ns()

import typer

from perfkit._stderr import print_message
from perfkit._version import VERSION
from perfkit.errors import Interrupted, PerfkitError

#: The subcommands, in the order in which --help lists them. Each is the function of this name in the module of this
#: name; the module may have ``CONTEXT``, settings for click. `_command` is what users write.
_COMMANDS = (
    "run",
    "diagnose",
    "ranks",
    "try_",
    "compare",
    "what_if",
    "history",
    "explain",
    "trim",
    "trigger",
    "watch",
    "latency",
    "nsys",
    "ncu",
    "which",
    "demo",
    "doctor",
)

#: What `perfkit` alone prints.
_FIRST = """\
perfkit reports why a PyTorch training is slow.

  perfkit run train.py   record the training, and report what its steps cost and what to change
  perfkit try train.py   apply what the report advises, and measure what it saves
  perfkit diagnose       report on the newest run again; --html writes a page

perfkit --help lists all commands."""


def _command(name: str) -> str:
    """The subcommand of a function: an underscore at its end is for Python alone, others stand for hyphens."""
    return name.rstrip("_").replace("_", "-")


def _build(names: Sequence[str] = _COMMANDS) -> typer.Typer:
    app = typer.Typer(
        name="perfkit",
        help="See where a PyTorch training step spends its time, which line it is, and what to change.",
        rich_markup_mode=None,
    )
    for name in names:
        module = import_module(f"perfkit.commands.{name}")
        app.command(_command(name), context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context, version: bool = typer.Option(False, "--version", help="Show the version and exit.")
    ) -> None:
        if version:
            typer.echo(f"perfkit {VERSION}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            typer.echo(_FIRST)

    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Raises only what a script under `perfkit run` raised.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the script. Python then ends as without perfkit: it calls the program's atexit
            handlers, which end the workers of its loaders, and dies of the signal, so that a shell loop stops too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The other commands load the offline column, which a program under `perfkit run` would then hold.
    named = [name for name in _COMMANDS if arguments[:1] == [_command(name)]]
    command: Any = typer.main.get_command(_build(named or _COMMANDS))
    try:
        code = command.main(args=arguments, prog_name="perfkit", standalone_mode=False)
    except PerfkitError as error:
        return _report_bad_input(str(error))
    except (typer.Exit, typer.Abort) as error:
        return int(getattr(error, "exit_code", 1))
    except Interrupted:
        sys.excepthook = lambda *_: None  # the script's own traceback is printed already
        raise KeyboardInterrupt from None
    except Exception as error:
        # Typer's own usage errors; their class has moved between its versions, their interface has not.
        words = getattr(error, "format_message", None)
        if words is None:
            raise
        return _report_bad_input(words() or "name a command")
    return code if isinstance(code, int) else 0


def _report_bad_input(text: str) -> int:
    print_message(" ".join(text.split()))
    return 2
