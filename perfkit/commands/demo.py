"""``perfkit demo``: a real training with planted mistakes, found, priced, corrected and measured again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from perfkit import diagnosis as diagnoses
from perfkit.diagnosis import Diagnosis
from perfkit.errors import PerfkitError, UsageError
from perfkit.findings import Finding
from perfkit.reports.terminal import print_diagnosis, stderr_console, stdout_console
from perfkit.rules.wording import between, ms, percent
from perfkit.run.writing import claim_folder, launch_id

#: rule -> the script's word for the mistake that the rule finds there.
CORRECTIONS = {"input-bound": "input", "many-small-ops": "loop", "sync-in-step": "sync"}

#: Steps of a corrected variant: the first two are left out as warm-up and the window takes six, so that a
#: comparison stands on 40.
_VARIANT_STEPS = 50


def demo(
    out: str | None = typer.Option(None, "--out", help="Folder of the run. Default: runs/demo-<date>-<time>."),
    steps: int = typer.Option(120, "--steps", help="Training steps of the first run.", min=30),
    every: bool = typer.Option(False, "--all", help="Show every finding, with its evidence."),
) -> int:
    """Train a small transformer with planted mistakes, find them, and measure what correcting each gains.

    The script is copied into the run folder: open it at the lines that are named.
    """
    folder = claim_folder(Path(out or f"runs/demo-{time.strftime('%Y%m%d-%H%M%S')}"), launch_id(), overwrite=False)
    script = folder / "train.py"
    shutil.copyfile(str(files("perfkit.demo") / "train.py"), script)
    says, console = stderr_console(), stdout_console()
    says.print(f"perfkit demo: training {script} for {steps} steps", style="dim")
    _train(folder, script, steps, [])
    found = diagnoses.diagnose(folder)
    print_diagnosis(found, console, all=every)
    gains = _measure_corrections(folder, script, found, says)
    _print_gains(found, gains, console)
    console.print(f"The run is in {folder}: perfkit diagnose {folder} --all", style="dim", soft_wrap=True)
    return 0


def _train(folder: Path, script: Path, steps: int, fixes: list[str]) -> None:
    """Run the script under ``perfkit run``, in a process of its own, as a user would."""
    wanted = [f"--fix={fix}" for fix in fixes]
    command = [sys.executable, "-m", "perfkit", "run", "--quiet", "--syncs=auto", "--out", str(folder), str(script)]
    done = subprocess.run([*command, f"--steps={steps}", *wanted], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise UsageError(f"the demo's training ended with exit code {done.returncode}; its own words are above")


def _measure_corrections(
    folder: Path, script: Path, found: Diagnosis, says: Console
) -> list[tuple[str, list[Finding], int]]:
    """(what was corrected, the findings it answers, mean step in ns) for each timed finding, and for all at once."""
    timed = [f for f in found.findings if f.rule in CORRECTIONS and f.lost_ns is not None and f.severity != "info"]
    variants = [(CORRECTIONS[finding.rule], [finding]) for finding in timed]
    variants.append(("all", timed))
    gains = []
    with says.status("measuring corrections") as status:
        for word, findings in variants:
            status.update(f"training with {'every mistake' if word == 'all' else f'only the {word} mistake'} corrected")
            place = folder / f"corrected-{word}"
            _train(place, script, _VARIANT_STEPS, [word])
            step = diagnoses.diagnose(place).step
            if step is None:
                raise PerfkitError(f"no step of the corrected training was timed, see {place}")
            gains.append((word, findings, step.wall_ns))
    return gains


def _print_gains(found: Diagnosis, gains: list[tuple[str, list[Finding], int]], console: Console) -> None:
    if found.step is None:
        return
    before = found.step.wall_ns
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("corrected")
    for column in ("step", "predicted gain", "measured gain"):
        table.add_column(column, justify="right")
    for word, findings, after in gains:
        low = sum(finding.gain_low_ns or 0 for finding in findings)
        high = min(before, sum(finding.gain_high_ns or 0 for finding in findings))
        table.add_row(
            "everything" if word == "all" else findings[0].rule,
            ms(after),
            between(low, high),
            f"{ms(before - after)} ({percent(before - after, before)})",
        )
    console.print()
    console.print(table)
    fastest = gains[-1][2]
    console.print(
        f"With every mistake corrected a step takes {ms(fastest)} instead of {ms(before)}: "
        f"{before / fastest:.1f}x as fast."
    )
