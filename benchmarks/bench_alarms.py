"""Whether warnings on programs that should have none are false: their changes are tried.

    python benchmarks/bench_verdict.py --keep FOLDER
    python benchmarks/bench_alarms.py FOLDER [--half HALF] [--minutes M]

The suite counts each warning on a healthy program or a corrected twin as a false alarm. A program can have a second
cause that its author did not see. So where the catalogue of `perfkit try` has a change that answers the warning, the
program is tried with it: the warning is right if that saves time, beyond what two unchanged runs differ by. Of the
judging half only the counts are printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

SUITE = Path(__file__).resolve().parents[1] / "tests" / "pathologies"
sys.path.insert(0, str(SUITE))

from judging import alarms, reread  # noqa: E402 - the suite is no package
from suite import HALVES, PROGRAMS, Program  # noqa: E402

import perfkit  # noqa: E402
from perfkit.run.records import Trial  # noqa: E402

#: For one program: as in bench_try_twins.
_BUDGET_S = 180.0
#: What became of an alarmed run, best news first; a run counts under the first that one of its changes has.
_BECAME = {
    "faster": "a change that answers it saves time",
    "undecided": "undecided",
    "no-difference": "no difference",
    "slower": "slower",
    "no-effect": "the change has no effect",
    "failed": "could not be tried",
    "not-tried": "not tried: no change answers it, or the time was over",
}


def tried(program: Program, folder: Path) -> Trial | str:
    """Try what the recorded run's warnings advise; a text where that cannot be tried."""
    os.chdir(program.folder)
    command = [program.path.name, *(["--fixed"] if program.rule is not None else [])]
    if program.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.ranks}"]
        command = [sys.executable, *launcher, *command]
    try:
        return perfkit.try_changes(command, budget_s=_BUDGET_S, run=folder)
    except perfkit.UsageError:
        return "not-tried"
    except perfkit.PerfkitError as error:
        if program.half == "tuning":
            print(f"{program.name}: {error}", file=sys.stderr)
        return "failed"


def became(trial: Trial | str) -> str:
    """The best outcome of a trial's changes."""
    if isinstance(trial, str):
        return trial
    outcomes = {one.outcome for one in trial.changes if one.kind not in ("bound", "computed")}
    return next((name for name in _BECAME if name in outcomes), "not-tried")


def alarmed(half: str, folder: Path) -> Iterator[tuple[Program, list[str]]]:
    """The programs of a half whose healthy run in ``folder`` has warnings, with these."""
    for program in PROGRAMS:
        recorded = folder / program.name / "fixed"
        if program.half == half and recorded.is_dir() and (found := alarms(reread(program, recorded))):
            yield program, found


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the alarmed programs and print the tables."""
    parser = argparse.ArgumentParser(description="Try what warnings on healthy programs advise.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what bench_verdict.py --keep has stored")
    parser.add_argument("--half", choices=HALVES, help="one half (default: both)")
    parser.add_argument("--minutes", type=float, default=1000.0, metavar="M", help="begin no trial after M minutes")
    given = parser.parse_args(arguments)
    folder = given.folder.resolve()
    if not folder.is_dir():
        parser.error(f"{folder} must be a folder that bench_verdict.py --keep has written, and does not exist")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    until = time.monotonic() + 60 * given.minutes
    for half in HALVES if given.half is None else (given.half,):
        counts: Counter[str] = Counter()
        rows = []
        for program, found in alarmed(half, folder):
            trial = tried(program, folder / program.name / "fixed") if time.monotonic() < until else "not-tried"
            outcome = became(trial)
            counts[outcome] += 1
            said = "; ".join(f"{one.name}: {one.sentence}" for one in trial.changes) if isinstance(trial, Trial) else ""
            rows.append(f"| {program.name} | {'; '.join(found)} | {_BECAME[outcome]} | {said} |")
            print(f"{counts.total()} of {half}", file=sys.stderr, flush=True)
        print(f"### {half}\n\n| {counts.total()} runs with a warning | count |\n|---|---|")
        for name, text in _BECAME.items():
            print(f"| {text} | {counts[name]} |")
        if half == "tuning":
            print("\n| program | warnings | what became of it | changes |\n|---|---|---|---|", *rows, sep="\n")
        print(flush=True)


if __name__ == "__main__":
    main()
