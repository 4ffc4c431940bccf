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

#: Processor time of the process before it loads perfkit: what `perfkit run` has used from here on is its own cost.
BEGAN_NS = time.process_time_ns()

import click

from perfkit._stderr import print_message
from perfkit._version import VERSION
from perfkit.errors import Interrupted, PerfkitError

#: The subcommands, in the order in which --help lists them.
_COMMANDS = (
    "run",
    "diagnose",
    "ranks",
    "try",
    "compare",
    "what-if",
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


class _Subcommands(click.Group):
    """Loads a command when it is named: others load what a program under `perfkit run` would then hold."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        # The function of this name in the module of this name; Python has a word of its own that is one of them.
        name = "try_" if cmd_name == "try" else cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"perfkit.commands.{name}"), name)
        return command


@click.group("perfkit", cls=_Subcommands, invoke_without_command=True)
@click.version_option(VERSION, message="perfkit %(version)s")
@click.option("--install-completion", is_flag=True, help="Install completion for the current shell.")
@click.option(
    "--show-completion",
    is_flag=True,
    help="Show completion for the current shell, to copy it or customize the installation.",
)
@click.pass_context
def command_line(context: click.Context, install_completion: bool, show_completion: bool) -> None:
    """See where a PyTorch training step spends its time, which line it is, and what to change."""
    if install_completion or show_completion:
        # Used once for each shell.
        from perfkit.commands._completion import completion, install

        click.echo(install() if install_completion else completion().line)
        context.exit()
    if context.invoked_subcommand is None:
        click.echo(_FIRST)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Raises only what a script under `perfkit run` raised.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the script. Python then ends as without perfkit: it calls the program's atexit
            handlers, which end the workers of its loaders, and dies of the signal, so that a shell loop stops too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = command_line.main(arguments, prog_name="perfkit", standalone_mode=False)
        # The script of `perfkit run` begins after click has ended: one that uses click would find perfkit's context.
        code = code() if callable(code) else code
    except PerfkitError as error:
        return _report_bad_input(str(error))
    except click.ClickException as error:
        return _report_bad_input(error.format_message())
    except click.Abort:
        return 1
    except Interrupted:
        sys.excepthook = lambda *_: None  # the script's own traceback is printed already
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0


def _report_bad_input(text: str) -> int:
    print_message(" ".join(text.split()))
    return 2
