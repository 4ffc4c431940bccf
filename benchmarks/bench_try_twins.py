"""Whether `perfkit try` measures what the correction by hand saves: programs of the labelled suite and their twins.

    python benchmarks/bench_try_twins.py [--half tuning] [--only PROGRAM] [--minutes M] [--json OUT] [--keep FOLDER]

Each program whose cause has a change in the catalogue is tried with that change (all its values), and its saving is
compared with that of its corrected twin, measured in turns. A twin may correct more, or in another way than a change
can: such programs are listed with their savings all the same. With --keep, the trials are kept for
`bench_verdict.py --trials`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SUITE = Path(__file__).resolve().parents[1] / "tests" / "pathologies"
sys.path.insert(0, str(SUITE))

from in_turns import measure  # noqa: E402 - the suite is no package
from suite import HALVES, Program, programs_of  # noqa: E402

import perfkit  # noqa: E402
from perfkit.trial.catalog import find_changes  # noqa: E402

#: Difference from the twin's saving that counts as the same, as a share of the step.
CLOSE = 0.03
#: For one program: five comparisons of its change's values, and their combination.
BUDGET_S = 150.0


class TwinRow(NamedTuple):
    """One program: what was tried, what that saves, what the twin saves, or why nothing was measured."""

    program: str
    changes: str
    saving: float | None
    low: float | None
    high: float | None
    twin: float | None
    remark: str = ""

    @property
    def close(self) -> bool | None:
        """Whether both savings are the same; None where one is not known."""
        return None if self.saving is None or self.twin is None else abs(self.saving - self.twin) <= CLOSE


def answers(program: Program) -> list[str]:
    """The changes that answer the program's cause."""
    usable = [one for one in find_changes().values() if one.kind in ("exact", "numeric")]
    return [one.id for one in usable if program.rule in one.answers]


def row_of(program: Program, budget_s: float, keep: Path | None = None) -> TwinRow:
    """Try the program, and measure its twin; with ``keep``, leave its trial.json there."""
    names = [text for name in answers(program) for text in _with_values(name)]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(program.folder)
        try:
            run = _recorded(program, folder)
            trial = perfkit.try_changes([program.path.name], changes=names, budget_s=budget_s, run=run)
        except perfkit.PerfkitError as error:
            return TwinRow(program.name, "", None, None, None, None, str(error))
        if keep is not None:
            (kept := keep / program.name).mkdir(parents=True, exist_ok=True)
            (kept / "trial.json").write_text(trial.to_json())
        together = trial.together
        twin = measure(program, Path(folder)).saved_share
    if together is None or together.saving is None or together.ci is None:
        became = "; ".join(f"{one.name}: {one.sentence}" for one in trial.changes)
        return TwinRow(program.name, "", 0.0, None, None, twin, became)
    return TwinRow(program.name, together.name, together.saving, *together.ci, twin)


def _with_values(name: str) -> list[str]:
    change = find_changes()[name]
    return [name] if change.parse is None else [f"{name}={value}" for value in change.suggested()]


def _recorded(program: Program, folder: str) -> Path:
    """A short run of the program, so that nothing is written into the suite's folder."""
    out = Path(folder) / "run"
    command = [sys.executable, "-m", "perfkit", "run", "--quiet", "--stop-after", "60", "--out", str(out)]
    subprocess.run([*command, program.path.name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return out


def table(rows: list[TwinRow]) -> None:
    """Print the rows, and how many are close."""
    print("| program | with | saves | 95% interval | twin saves | within 3 points | remark |")
    print("|---|---|---|---|---|---|---|")
    for one in rows:
        interval = f"{one.low:.3f} to {one.high:.3f}" if one.low is not None and one.high is not None else ""
        close = {None: "", True: "yes", False: "no"}[one.close]
        cells = (one.program, one.changes, _share(one.saving), interval, _share(one.twin), close, one.remark)
        print(f"| {' | '.join(cells)} |")
    known = [one.close for one in rows if one.close is not None]
    print(f"\n{sum(known)} of {len(known)} within 3 points of the twin")


def _share(share: float | None) -> str:
    return f"{share:.3f}" if share is not None else ""


def main() -> None:
    """Try the programs and print the table."""
    parser = argparse.ArgumentParser(description="Compare what perfkit try measures with what corrected twins save.")
    parser.add_argument("--half", choices=HALVES, default="tuning")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--minutes", type=float, default=1000.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    out = given.json.resolve() if given.json is not None else None
    keep = given.keep.resolve() if given.keep is not None else None
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    until = time.monotonic() + 60 * given.minutes
    rows: list[TwinRow] = []
    for program in programs_of(SUITE / given.half):
        wanted = not given.only or program.name in given.only
        if not (wanted and answers(program) and program.quantified and program.ranks == 1 and not program.missing):
            continue
        if time.monotonic() > until:
            print(f"time is over before {program.name}", file=sys.stderr)
            break
        rows.append(row_of(program, BUDGET_S, keep))
        print(rows[-1], file=sys.stderr, flush=True)
        if out is not None:
            out.write_text(json.dumps([one._asdict() for one in rows], indent=1))
    table(rows)


if __name__ == "__main__":
    main()
