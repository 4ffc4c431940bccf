"""Whether the verdict is right: every program of tests/pathologies, broken and fixed, under `perfkit run`.

    python benchmarks/bench_verdict.py [--only NAME] [--repeat N] [--json OUT] [--keep FOLDER] [--again FOLDER]

Each program runs alone under `perfkit run`, with one thread, and then twice in turns with its twin (in_turns.py): so
what the correction gains is known as a share of the step, whatever the machine does meanwhile. The measured gain is
that share of the step of the run that was judged; steps are medians, or means where the cost comes in bursts. The
predicted gain is that of the first finding. With --again what was kept is judged by the rules as they are now.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PATHOLOGIES = Path(__file__).resolve().parents[1] / "tests" / "pathologies"
sys.path.insert(0, str(PATHOLOGIES))

from in_turns import Gain, measure  # noqa: E402 - found through the line above
from judging import Answer, Run, alarms, answer, reread, run  # noqa: E402 - found through the line above
from suite import PROGRAMS, Program  # noqa: E402 - found through the line above

#: One pair in turns is off by up to a sixth of the gain, and more where workers or caches are what it is about.
_PAIRS = 2
#: Half of the lost time, and the nanosecond that rounding makes of it.
_HALF = 0.5 + 1e-6
#: Beside the recordings of a program: its pairs.
_GAINS = "gains.json"


class Verdict(NamedTuple):
    """One program held against its label; times in ns per step, None where there is none."""

    program: Program
    broken: Run | None
    fixed: Run
    answer: Answer | None
    alarms: list[str]
    gains: list[Gain]

    @property
    def gain_share(self) -> float | None:
        """What the correction takes off the step, as a share; None where it cannot show on a CPU, or was not measured.

        The mean of the pairs: each saw the machine in another state.
        """
        shares = [gain.share for gain in self.gains if gain.share is not None]
        return statistics.fmean(shares) if shares else None

    @property
    def gain_ns(self) -> float | None:
        """What the correction gains in the run that was judged."""
        if self.broken is None or self.broken.step_ns is None or self.gain_share is None:
            return None
        return self.gain_share * self.broken.step_ns

    @property
    def predicted(self) -> tuple[int, int] | None:
        """The range of the gain that was foretold, where the cause was right."""
        if self.answer is None or not self.answer.right_cause:
            return None
        if self.answer.low_ns is None or self.answer.high_ns is None:
            return None
        return self.answer.low_ns, self.answer.high_ns

    @property
    def error(self) -> float | None:
        """How far the middle of the range is from the measured gain, as a share of it."""
        if self.predicted is None or not self.gain_ns:
            return None
        return abs(sum(self.predicted) / 2 - self.gain_ns) / abs(self.gain_ns)

    @property
    def held(self) -> bool | None:
        """Whether the measured gain lies within the range."""
        if self.predicted is None or self.gain_ns is None:
            return None
        return self.predicted[0] <= self.gain_ns <= self.predicted[1]

    @property
    def width(self) -> float | None:
        """The range's width as a share of the lost time."""
        if self.predicted is None or self.answer is None or not self.answer.cost_ns:
            return None
        return (self.predicted[1] - self.predicted[0]) / self.answer.cost_ns

    @property
    def cannot_tell(self) -> bool:
        """Whether the program's own answer is that there is none."""
        of = self.broken or self.fixed
        findings = of.diagnosis["findings"] if of.diagnosis else []
        return not findings or findings[0]["rule"] == "cannot-tell"


def judge(program: Program, folder: Path) -> Verdict:
    """Run a program, and its twin where it has one."""
    fixed = run(program, folder / "fixed", fixed=program.rule is not None)
    if program.rule is None:
        return Verdict(program, None, fixed, None, alarms(fixed), [])
    broken = run(program, folder / "broken", fixed=False)
    gains = [measure(program, folder / f"pair-{pair}") for pair in range(_PAIRS if program.priced else 0)]
    (folder / _GAINS).write_text(json.dumps([list(gain) for gain in gains]))
    return Verdict(program, broken, fixed, answer(program, broken), alarms(fixed), gains)


def judge_again(program: Program, folder: Path) -> Verdict:
    """Judge what an earlier `judge` recorded, by the rules as they are now."""
    fixed = reread(program, folder / "fixed")
    if program.rule is None:
        return Verdict(program, None, fixed, None, alarms(fixed), [])
    broken = reread(program, folder / "broken")
    gains = [Gain(*pair) for pair in json.loads((folder / _GAINS).read_text())]
    return Verdict(program, broken, fixed, answer(program, broken), alarms(fixed), gains)


def row(verdict: Verdict) -> str:
    """The program's line of the table."""
    program, got = verdict.program, verdict.answer
    told = "; ".join(verdict.alarms)
    failed = [one.code for one in (verdict.broken, verdict.fixed) if one is not None and one.code]
    if failed:
        told += f" EXIT {failed}"
    if got is None or verdict.broken is None:
        findings = verdict.fixed.diagnosis["findings"] if verdict.fixed.diagnosis else []
        first, step = findings[0]["rule"] if findings else "nothing", _ms(verdict.fixed.step_ns)
        return f"| {program.name} | healthy | {first} |  |  |  | {step} |  |  | {told} |"
    predicted = verdict.predicted
    foretold = f"{predicted[0] / 1e6:.1f} to {predicted[1] / 1e6:.1f}" if predicted else ""
    gain = _ms(verdict.gain_ns) or ("not measured" if program.priced else "no price")
    cells = [
        program.name,
        program.rule or "",
        got.first or "nothing",
        _word(got.right_cause),
        _word(got.right_line) + (f" ({got.at})" if got.at and not got.right_line else ""),
        foretold,
        _ms(verdict.broken.step_ns),
        gain,
        _word(verdict.held),
        told,
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| program | expected | got first | right cause | right line | predicted gain, ms | step, ms | measured gain, ms "
    "| within range | told of the healthy twin |\n|---|---|---|---|---|---|---|---|---|---|"
)


def totals(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The figures that the targets are about; None where nothing could be counted."""
    ill = [one for one in verdicts if one.answer is not None]
    lines = [one.answer.right_line for one in ill if one.answer]
    errors = [one.error for one in ill if one.error is not None]
    held = [one.held for one in ill if one.held is not None]
    widths = [one.width for one in ill if one.width is not None]
    return {
        "pathological": len(ill),
        "healthy runs": len(verdicts),
        "right cause first": _share([one.answer.right_cause for one in ill if one.answer]),
        "right line": _share(lines),
        "healthy runs with a false alarm": sum(1 for one in verdicts if one.alarms),
        "false alarms per healthy run": _mean([len(one.alarms) for one in verdicts]),
        "median error of the predicted gain": statistics.median(errors) if errors else None,
        "measured gain within the range": _share(held),
        "median width of the range over lost time": statistics.median(widths) if widths else None,
        "ranges no wider than half the lost time": _share([width <= _HALF for width in widths]),
        "cannot-tell": sum(one.cannot_tell for one in verdicts),
    }


def record(verdict: Verdict) -> dict[str, Any]:
    """One verdict as JSON."""
    got = verdict.answer
    return {
        "program": verdict.program.name,
        "expected": verdict.program.rule,
        "first": got.first if got else None,
        "right_cause": got.right_cause if got else None,
        "right_line": got.right_line if got else None,
        "at": got.at if got else None,
        "predicted_ns": verdict.predicted,
        "broken_ns": verdict.broken.step_ns if verdict.broken else None,
        "fixed_ns": verdict.fixed.step_ns,
        "cost_ns": got.cost_ns if got else None,
        "measured_ns": verdict.gain_ns,
        "pairs_ns": [list(gain) for gain in verdict.gains],
        "healthy_phases_ns": verdict.fixed.diagnosis["phases"] if verdict.fixed.diagnosis else None,
        "alarms": verdict.alarms,
        "cannot_tell": verdict.cannot_tell,
        "exit_codes": [one.code for one in (verdict.broken, verdict.fixed) if one is not None],
    }


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _ms(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e6:.1f}"


def _word(value: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[value]


def _written(value: Any) -> str:
    return "not measured" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite, print the tables."""
    parser = argparse.ArgumentParser(description="Hold perfkit's verdicts against the labelled suite.")
    parser.add_argument("--only", action="append", metavar="NAME", help="one program; may be repeated")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run each program N times (default: 1)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write what was found as JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders, to diagnose them again")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run nothing: diagnose again what --keep left")
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - {program.name for program in PROGRAMS}
    if unknown:
        parser.error(
            f"no program is called {', '.join(sorted(unknown))}; they are listed in {PATHOLOGIES / 'suite.py'}"
        )
    chosen = [program for program in PROGRAMS if not options.only or program.name in options.only]
    verdicts = []
    print(HEAD, flush=True)
    for program in chosen * options.repeat:
        with tempfile.TemporaryDirectory() as made:
            kept = options.again or options.keep or Path(made)
            verdicts.append((judge_again if options.again else judge)(program, kept / program.name))
        print(row(verdicts[-1]), flush=True)
    figures = totals(verdicts)
    print("\n| figure | value |\n|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {_written(value)} |")
    if options.json is not None:
        found = {"totals": figures, "programs": [record(verdict) for verdict in verdicts]}
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
