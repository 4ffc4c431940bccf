"""The program and the options that `perfkit nsys` and `perfkit ncu` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_SHARED = (
    click.argument("program", nargs=-1, required=True),
    click.option("-m", "module", is_flag=True, help="Run PROGRAM as a module, as in python -m."),
    click.option("--out", help="Folder for the report and the run. Default: runs/<script>-<date>-<time>."),
    click.option("--print", "print_only", is_flag=True, help="Print the command without running it."),
    click.option("--schedule", help="Record this window: wait,warmup,active[,repeat] in steps. Default: 10,2,3,1."),
    click.option(
        "--stop-after", metavar="N", type=click.IntRange(min=1), help="End the program cleanly after N steps."
    ),
    click.option("--force-overwrite", is_flag=True, help="Replace a run and reports in the output folder."),
    click.option("--plain", is_flag=True, help="Start PROGRAM without perfkit in it."),
    click.option("--all", "show_all", is_flag=True, help="Show all findings, not only the five most expensive ones."),
)


def nsight_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add them to a command, in this order; their values are the fields of `NsightOptions`."""
    for option in reversed(_SHARED):
        function = option(function)
    return function
