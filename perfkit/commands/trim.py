"""``perfkit trim``: cuts a trace to some steps, some time, or some kinds of events."""

from __future__ import annotations

import re
from pathlib import Path

import click

from perfkit._stderr import print_message
from perfkit.commands._progress import reading_bar
from perfkit.errors import UsageError

#: Endings of trace files, the longest first; the new name keeps the ending, by which tools know the format.
_ENDINGS = (".pt.trace.json.gz", ".pt.trace.json", ".trace.json.gz", ".trace.json", ".json.gz", ".json")

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s)")


@click.command
@click.argument("trace")
@click.option("--out", help="Output path; gzipped if it ends in .gz. Default: next to the trace, as NAME.trimmed.")
@click.option(
    "--steps", help="Keep these steps, as a Python slice: 4:6 keeps 4 and 5, 4: all from 4 on, 4 only step 4."
)
@click.option("--time", help="Keep this time after the first event, with units (ns, us, ms, s): 10ms:20ms, 1.5s:.")
@click.option(
    "--drop",
    multiple=True,
    help="Drop these kinds of events, separated by commas: python_function, cpu_op, kernel, ac2g, memory ...",
)
@click.option("--keep", multiple=True, help="Keep only these kinds of events, separated by commas.")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
def trim(
    trace: str,
    out: str | None,
    steps: str | None,
    time: str | None,
    drop: tuple[str, ...],
    keep: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Cut a trace to some steps or some time, or drop kinds of events; Perfetto and perfkit read the result.

    --steps keeps what threads did during these steps, and all device work launched in them, even if it ran later;
    --time also keeps what devices did in that time. Names of processes and threads are kept, flows if both ends are
    kept, and times exactly as written. The trace itself is never changed.

    TRACE: A trace of torch.profiler: .json or .json.gz.
    """
    from perfkit.trace.kineto.trimming import trim_trace  # loads numpy, which `perfkit run` must leave to the program

    if steps is None and time is None and not drop and not keep:
        raise UsageError("select what to keep: --steps 4:6, --time 10ms:20ms, --drop python_function or --keep kernel")
    chosen_steps = _steps(steps) if steps is not None else None
    chosen_time = _time(time) if time is not None else None
    source = Path(trace)
    target = Path(out) if out is not None else _default_output(source)
    if target.exists() and not overwrite and not (source.exists() and target.samefile(source)):
        raise UsageError(f"{target} exists; give another --out, or --overwrite")
    with reading_bar(f"trimming {source.name}") as report:
        done = trim_trace(
            source,
            target,
            steps=chosen_steps,
            time_ns=chosen_time,
            drop=_words(drop),
            keep=_words(keep),
            progress=report,
        )
    for sentence in done.lost:
        print_message(sentence)
    for word in done.unused:
        print_message(f"{source} has no events of kind {word}")
    of_steps = f" of step {done.steps[0]}" if len(done.steps) == 1 else ""
    if len(done.steps) > 1:
        of_steps = f" of steps {done.steps[0]} to {done.steps[-1]}"
    click.echo(
        f"{target}: {done.kept:,} of {done.events:,} events{of_steps},"
        f" {done.bytes_after / 1e6:.1f} of {done.bytes_before / 1e6:.1f} MB"
    )


def _default_output(source: Path) -> Path:
    ending = next((ending for ending in _ENDINGS if source.name.endswith(ending)), source.suffix)
    return source.with_name(f"{source.name.removesuffix(ending)}.trimmed{ending}")


def _words(given: tuple[str, ...]) -> list[str]:
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def _steps(text: str) -> tuple[int | None, int | None]:
    if re.fullmatch(r"\d{1,15}", text):
        return int(text), int(text) + 1
    if text != ":" and re.fullmatch(r"\d{0,15}:\d{0,15}", text):
        first, stop = (int(part) if part else None for part in text.split(":"))
        if first is None or stop is None or first < stop:
            return first, stop
    raise UsageError(f"--steps takes a step or first:stop (4:6 keeps 4 and 5), got {text!r}")


def _time(text: str) -> tuple[int | None, int | None]:
    parts = text.split(":")
    found = [_TIME.fullmatch(part) for part in parts]
    if len(parts) == 2 and any(parts) and all(match or not part for match, part in zip(found, parts, strict=True)):
        start, end = (round(float(match[1]) * _UNITS_NS[match[2]]) if match else None for match in found)
        if end is None or (start or 0) < end:
            return start, end
    raise UsageError(f"--time takes start:end with units (10ms:20ms, 1.5s:), got {text!r}")
