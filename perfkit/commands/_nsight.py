"""What `perfkit nsys` and `perfkit ncu` take alike: the program, where its run goes, its window, and what is shown."""

from __future__ import annotations

from typing import Annotated

import typer

Program = Annotated[
    list[str],
    typer.Argument(
        metavar="PROGRAM", help="train.py, python train.py, torchrun ... train.py, or any command; as it is."
    ),
]
Module = Annotated[bool, typer.Option("-m", help="PROGRAM is a module name, as in python -m.")]
Out = Annotated[
    str | None, typer.Option("--out", help="Folder for the report and the run. Default: runs/<script>-<date>-<time>.")
]
Print = Annotated[bool, typer.Option("--print", help="Only print the command, for a shell or a batch script.")]
Schedule = Annotated[
    str | None,
    typer.Option("--schedule", help="Window as wait,warmup,active[,repeat] in steps. Default: 10,2,3,1."),
]
StopAfter = Annotated[
    int | None, typer.Option("--stop-after", help="End the program cleanly after so many steps.", min=1)
]
ForceOverwrite = Annotated[bool, typer.Option("--force-overwrite", help="Replace a run and reports in the folder.")]
Plain = Annotated[bool, typer.Option("--plain", help="Start PROGRAM without perfkit in it.")]
Every = Annotated[bool, typer.Option("--all", help="Show every finding, not only the five that cost most.")]
