"""``perfkit demo``: a real training with planted mistakes, found, corrected and measured again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from perfkit import diagnosis as diagnoses
from perfkit._format import ms, ms_range, percent
from perfkit.diagnosis import Diagnosis
from perfkit.errors import PerfkitError, UsageError
from perfkit.findings import Finding
from perfkit.reports.console import stderr_console, stdout_console
from perfkit.reports.terminal import print_diagnosis
from perfkit.run.folder_claim import claim_folder, launch_id

#: rule -> the script's word for the mistake that the rule finds there.
CORRECTIONS = {"input-bound": "input", "many-small-ops": "loop", "sync-in-step": "sync"}

#: Steps of a variant: the first two are warm-up, the window and the traced step take six, so that 40 are compared.
_VARIANT_STEPS = 50


@click.command
@click.option("--out", help="Write the run to this folder. Default: runs/demo-<date>-<time>.")
@click.option(
    "--steps",
    type=click.IntRange(min=30),
    default=120,
    show_default=True,
    help="Train the first run for this many steps.",
)
@click.option("--all", "every", is_flag=True, help="Show all findings, with their evidence.")
def demo(out: str | None, steps: int, every: bool) -> int:
    """Train a small transformer with planted mistakes, find them, and measure what correcting each saves.

    The script is copied into the run folder: open it at the lines that the findings name.
    """
    folder = claim_folder(
        Path(out or f"runs/demo-{time.strftime('%Y%m%d-%H%M%S')}"), launch_id(), overwrite=False, for_program=True
    )
    script = folder / "train.py"
    shutil.copyfile(str(files("perfkit.demo") / "train.py"), script)
    progress, console = stderr_console(), stdout_console()
    progress.print(f"perfkit demo: training {script} for {steps} steps", style="dim")
    _train(folder, script, steps, "--syncs=auto")
    diagnosis = diagnoses.diagnose(folder)
    print_diagnosis(diagnosis, console, all=every, says_next=False)
    before_ns, corrected = _measure_corrections(folder, script, diagnosis, progress)
    _print_savings(before_ns, corrected, console)
    console.print(f"The run is in {folder}: perfkit diagnose {folder} --all", style="dim", soft_wrap=True)
    return 0


def _train(folder: Path, script: Path, steps: int, *options: str, fix: str | None = None) -> None:
    """Run the script under ``perfkit run OPTIONS``, in a process of its own, as a user would."""
    command = [sys.executable, "-m", "perfkit", "run", "--quiet", *options, "--out", str(folder), str(script)]
    arguments = [f"--steps={steps}"] if fix is None else [f"--steps={steps}", f"--fix={fix}"]
    done = subprocess.run([*command, *arguments], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise UsageError(f"the demo's training ended with exit code {done.returncode}; its output is above")


def _measure_corrections(
    folder: Path, script: Path, diagnosis: Diagnosis, progress: Console
) -> tuple[int, list[tuple[list[Finding], int]]]:
    """The mean step unchanged, and with each quantified finding's mistake corrected, and with all; in ns.

    Each is trained twice, in turns, and the faster one counts: other programs on the machine only slow it.
    """
    quantified = [finding for finding in diagnosis.findings if finding.rule in CORRECTIONS and finding.quantified]
    variants: dict[str, list[Finding]] = {"nothing": []}
    variants |= {CORRECTIONS[finding.rule]: [finding] for finding in quantified}
    variants["all"] = quantified
    fastest: dict[str, int] = {}
    with progress.status("measuring corrections") as status:
        for turn in ("first", "second"):
            for word in variants:
                status.update(f"training with {word} corrected, {turn} time")
                corrected = folder / f"corrected-{word}-{turn}"
                _train(corrected, script, _VARIANT_STEPS, fix=None if word == "nothing" else word)
                step = diagnoses.diagnose(corrected).step
                if step is None:
                    raise PerfkitError(f"no step of the corrected training was timed, see {corrected}")
                fastest[word] = min(step.wall_ns, fastest.get(word, step.wall_ns))
    before_ns = fastest.pop("nothing")
    return before_ns, [(variants[word], ns) for word, ns in fastest.items()]


def _print_savings(before_ns: int, corrected: list[tuple[list[Finding], int]], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("corrected")
    for column in ("step", "predicted saving", "measured saving"):
        table.add_column(column, justify="right")
    *single, everything = corrected
    rows = [(findings[0].rule, findings, ns) for findings, ns in single] + [("everything", *everything)]
    for name, findings, after_ns in rows:
        low_ns = sum(finding.saving_low_ns or 0 for finding in findings)
        high_ns = min(before_ns, sum(finding.saving_high_ns or 0 for finding in findings))
        table.add_row(
            name,
            ms(after_ns),
            ms_range(low_ns, high_ns),
            f"{ms(before_ns - after_ns)} ({percent(before_ns - after_ns, before_ns)})",
        )
    fastest_ns = corrected[-1][1]
    console.print()
    console.print(table)
    speedup = f"{before_ns / fastest_ns:.1f}x as fast"
    console.print(f"With everything corrected, a step takes {ms(fastest_ns)} instead of {ms(before_ns)}: {speedup}.")
