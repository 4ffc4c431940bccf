"""Whether `perfkit try` measures what the correction by hand saves: programs of the labelled suite and their twins.

    python benchmarks/bench_try_twins.py [--half tuning] [--only PROGRAM] [--minutes M] [--json OUT] [--keep FOLDER]

Each program whose twin is corrected by what a change of the catalogue does (`tried_with` in labels.toml) is tried with
that change, and its saving is compared with the twin's, measured in turns. With --keep, the trials are kept for
`bench_verdict.py --trials`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
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

#: Difference from the twin's saving that counts as the same, as a share of the step.
CLOSE = 0.03
#: For one program: three looks at itself, three at the change, each of 15 s on an idle machine, and as much again.
BUDGET_S = 180.0
#: One pair of processes is off by up to a sixth of the saving: the mean of some is compared.
PAIRS = 3


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


def row_of(program: Program, budget_s: float, keep: Path | None = None) -> TwinRow:
    """Try the program, and measure its twin; with ``keep``, leave its trial.json there."""
    assert program.tried_with is not None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(program.folder)
        try:
            run = _recorded(program, folder)
            trial = perfkit.try_changes([program.path.name], changes=[program.tried_with], budget_s=budget_s, run=run)
        except perfkit.PerfkitError as error:
            return TwinRow(program.name, "", None, None, None, None, str(error))
        if keep is not None:
            (kept := keep / program.name).mkdir(parents=True, exist_ok=True)
            (kept / "trial.json").write_text(trial.to_json())
        together = trial.together
        pairs = [measure(program, Path(folder) / f"pair-{index}").saved_share for index in range(PAIRS)]
    known = [share for share in pairs if share is not None]
    twin = statistics.fmean(known) if known else None
    if together is None or together.saving is None or together.ci is None:
        became = "; ".join(f"{one.name}: {one.sentence}" for one in trial.changes)
        return TwinRow(program.name, "", 0.0, None, None, twin, became)
    return TwinRow(program.name, together.name, together.saving, *together.ci, twin)


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
        if program.tried_with is None or program.missing or (given.only and program.name not in given.only):
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
