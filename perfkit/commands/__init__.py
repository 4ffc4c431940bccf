"""The command line: one subcommand per file, and `main`, which turns every bad input into one line.

Exit codes: 0 done, whatever was found; 1 a gate failed; 2 bad input; `perfkit run` gives the script's own.
What a command is asked for goes to stdout; what it says beside that goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from perfkit._stderr import print_message
from perfkit._version import VERSION
from perfkit.commands import (
    compare,
    demo,
    diagnose,
    doctor,
    explain,
    latency,
    ncu,
    nsys,
    run,
    trigger,
    trim,
    watch,
    which,
)
from perfkit.errors import PerfkitError

#: perfkit run's and demo's SCRIPT takes all that follows for itself, options too.
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

#: So does the program of perfkit nsys and ncu; what stands before it are their own options.
_TAKES_A_COMMAND = {"allow_interspersed_args": False}


def _build() -> typer.Typer:
    app = typer.Typer(
        name="perfkit",
        help="See where a PyTorch training step spends its time, which line it is, and what to change.",
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=True,
    )
    app.command("run", context_settings=_PASS_THROUGH)(run.run)
    app.command("diagnose")(diagnose.diagnose)
    app.command("compare")(compare.compare)
    app.command("explain")(explain.explain)
    app.command("trim")(trim.trim)
    app.command("trigger")(trigger.trigger)
    app.command("watch")(watch.watch)
    app.command("latency")(latency.latency)
    app.command("nsys", context_settings=_TAKES_A_COMMAND)(nsys.nsys)
    app.command("ncu", context_settings=_TAKES_A_COMMAND)(ncu.ncu)
    app.command("which")(which.which)
    app.command("demo")(demo.demo)
    app.command("doctor")(doctor.doctor)

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
        if version:
            typer.echo(f"perfkit {VERSION}")
            raise typer.Exit

    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. Raises nothing but what a script under `perfkit run` raised."""
    command: Any = typer.main.get_command(_build())
    try:
        code = command.main(
            args=list(sys.argv[1:] if argv is None else argv), prog_name="perfkit", standalone_mode=False
        )
    except PerfkitError as error:
        return _complain(str(error))
    except (typer.Exit, typer.Abort) as error:
        return int(getattr(error, "exit_code", 1))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # Typer's own usage errors; their class has moved between its versions, their interface has not.
        words = getattr(error, "format_message", None)
        if words is None:
            raise
        return _complain(words() or "name a command")
    return code if isinstance(code, int) else 0


def _complain(text: str) -> int:
    print_message(" ".join(text.split()))
    return 2
