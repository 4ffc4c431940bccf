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
from perfkit._format import between, ms, percent
from perfkit.diagnosis import Diagnosis
from perfkit.errors import PerfkitError, UsageError
from perfkit.findings import Finding
from perfkit.reports.console import stderr_console, stdout_console
from perfkit.reports.terminal import print_diagnosis
from perfkit.run.folder_claim import claim_folder, launch_id

#: rule -> the script's word for the mistake that the rule finds there.
CORRECTIONS = {"input-bound": "input", "many-small-ops": "loop", "sync-in-step": "sync"}

#: Steps of a variant: the first two are left out as warm-up, the window and the traced step take six, so that a
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
    _train(folder, script, steps, "--syncs=auto")
    found = diagnoses.diagnose(folder)
    print_diagnosis(found, console, all=every)
    before, gains = _measure_corrections(folder, script, found, says)
    _print_gains(before, gains, console)
    console.print(f"The run is in {folder}: perfkit diagnose {folder} --all", style="dim", soft_wrap=True)
    return 0


def _train(folder: Path, script: Path, steps: int, *options: str, fix: str | None = None) -> None:
    """Run the script under ``perfkit run OPTIONS``, in a process of its own, as a user would."""
    command = [sys.executable, "-m", "perfkit", "run", "--quiet", *options, "--out", str(folder), str(script)]
    wanted = [f"--steps={steps}"] if fix is None else [f"--steps={steps}", f"--fix={fix}"]
    done = subprocess.run([*command, *wanted], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise UsageError(f"the demo's training ended with exit code {done.returncode}; its own words are above")


def _measure_corrections(
    folder: Path, script: Path, found: Diagnosis, says: Console
) -> tuple[int, list[tuple[list[Finding], int]]]:
    """Mean step as it is, and with the mistake behind each timed finding corrected, and with all; in ns.

    Each is trained twice, in turn, and the faster counts: what else runs on the machine only ever slows it.
    """
    timed = [f for f in found.findings if f.rule in CORRECTIONS and f.cost_ns is not None and f.severity != "info"]
    variants: dict[str, list[Finding]] = {"nothing": []}
    variants.update({CORRECTIONS[finding.rule]: [finding] for finding in timed})
    variants["all"] = timed
    fastest: dict[str, int] = {}
    with says.status("measuring corrections") as status:
        for turn in ("first", "second"):
            for word in variants:
                status.update(f"training with {word} corrected, {turn} time")
                place = folder / f"corrected-{word}-{turn}"
                _train(place, script, _VARIANT_STEPS, fix=None if word == "nothing" else word)
                step = diagnoses.diagnose(place).step
                if step is None:
                    raise PerfkitError(f"no step of the corrected training was timed, see {place}")
                fastest[word] = min(step.wall_ns, fastest.get(word, step.wall_ns))
    before = fastest.pop("nothing")
    return before, [(variants[word], ns) for word, ns in fastest.items()]


def _print_gains(before: int, gains: list[tuple[list[Finding], int]], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("corrected")
    for column in ("step", "predicted gain", "measured gain"):
        table.add_column(column, justify="right")
    for findings, after in gains:
        low = sum(finding.saving_low_ns or 0 for finding in findings)
        high = min(before, sum(finding.saving_high_ns or 0 for finding in findings))
        table.add_row(
            findings[0].rule if len(findings) == 1 else "everything",
            ms(after),
            between(low, high),
            f"{ms(before - after)} ({percent(before - after, before)})",
        )
    fastest = gains[-1][1]
    console.print()
    console.print(table)
    console.print(
        f"All corrected, a step takes {ms(fastest)} instead of {ms(before)}: {before / fastest:.1f}x as fast."
    )
