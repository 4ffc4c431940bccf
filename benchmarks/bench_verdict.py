"""Whether the verdict is right: every program of tests/pathologies, broken and fixed, under `perfkit run`.

    python benchmarks/bench_verdict.py [--only NAME] [--repeat N] [--json OUT] [--keep FOLDER] [--again FOLDER]

Each program runs alone under `perfkit run`, with one thread, and then twice in turns with its corrected twin
(in_turns.py). That gives the share of the step that the correction saves, independent of the machine's other load. The
measured saving is this share of the judged run's step; steps are medians, or means if the cost comes in bursts. The
predicted saving is the interval of the first finding. With --again, the recordings that --keep stored are judged by the
current rules.

Intervals are judged by two figures. Coverage is the share of measured savings inside their interval; the intervals
promise 80 %. The interval score (interval_score.py) counts width and misses together: the width, plus ten times the
distance by which the measured saving missed the interval. It is divided by the measured step, so that programs with
long and short steps count alike; lower is better.
Source: Gneiting and Raftery (2007), Journal of the American Statistical Association 102, 359-378, equation 43.
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

from in_turns import StepPair, measure  # noqa: E402 - found through the line above
from interval_score import interval_score  # noqa: E402 - found through the line above
from judging import Answer, Run, alarms, answer, reread, run  # noqa: E402 - found through the line above
from suite import PROGRAMS, Program  # noqa: E402 - found through the line above

#: A pair measured in turns is off by up to a sixth of the saving, and by more if it depends on workers or caches.
_PAIRS = 2
#: The pairs of a program, next to its recordings. Recordings are kept over versions: the name stays.
_PAIRS_FILE = "gains.json"


class Verdict(NamedTuple):
    """One program compared with its label; times in ns per step, None if they were not measured."""

    program: Program
    broken: Run | None
    fixed: Run
    answer: Answer | None
    alarms: list[str]
    pairs: list[StepPair]

    @property
    def exit_codes(self) -> list[int]:
        """Of the broken program, if there is one, and of the healthy one."""
        return [each.code for each in (self.broken, self.fixed) if each is not None]

    @property
    def saved_share(self) -> float | None:
        """What the correction saves, as a share of the step; None if a CPU cannot show it, or it was not measured.

        The mean of the pairs, because each ran under another load of the machine.
        """
        shares = [pair.saved_share for pair in self.pairs if pair.saved_share is not None]
        return statistics.fmean(shares) if shares else None

    @property
    def saving_ns(self) -> float | None:
        """What the correction saves in the run that was judged."""
        if self.broken is None or self.broken.step_ns is None or self.saved_share is None:
            return None
        return self.saved_share * self.broken.step_ns

    @property
    def predicted(self) -> tuple[int, int] | None:
        """The predicted interval of the saving, if the cause was right."""
        if self.answer is None or not self.answer.right_cause:
            return None
        if self.answer.low_ns is None or self.answer.high_ns is None:
            return None
        return self.answer.low_ns, self.answer.high_ns

    @property
    def error(self) -> float | None:
        """The distance of the interval's middle from the measured saving, as a share of the saving."""
        if self.predicted is None or not self.saving_ns:
            return None
        return abs(sum(self.predicted) / 2 - self.saving_ns) / abs(self.saving_ns)

    @property
    def covered(self) -> bool | None:
        """Whether the measured saving lies within the interval."""
        if self.predicted is None or self.saving_ns is None:
            return None
        return self.predicted[0] <= self.saving_ns <= self.predicted[1]

    @property
    def width(self) -> float | None:
        """The interval's width as a share of the cost."""
        if self.predicted is None or self.answer is None or not self.answer.cost_ns:
            return None
        return (self.predicted[1] - self.predicted[0]) / self.answer.cost_ns

    @property
    def score(self) -> float | None:
        """The interval score, as a share of the measured step."""
        if self.predicted is None or self.saving_ns is None or self.broken is None or not self.broken.step_ns:
            return None
        return interval_score(*self.predicted, self.saving_ns) / self.broken.step_ns

    @property
    def cannot_tell(self) -> bool:
        """Whether perfkit's own answer is that the recording does not show a cause."""
        judged = self.broken or self.fixed
        findings = judged.diagnosis["findings"] if judged.diagnosis else []
        return not findings or findings[0]["rule"] == "cannot-tell"


def judge(program: Program, folder: Path) -> Verdict:
    """Run a program, and its corrected twin if it has one."""
    fixed = run(program, folder / "fixed", fixed=program.rule is not None)
    if program.rule is None:
        return Verdict(program, None, fixed, None, alarms(fixed), [])
    broken = run(program, folder / "broken", fixed=False)
    pairs = [measure(program, folder / f"pair-{index}") for index in range(_PAIRS if program.quantified else 0)]
    (folder / _PAIRS_FILE).write_text(json.dumps(pairs))
    return Verdict(program, broken, fixed, answer(program, broken), alarms(fixed), pairs)


def judge_again(program: Program, folder: Path) -> Verdict:
    """Judge what an earlier `judge` recorded, by the current rules."""
    fixed = reread(program, folder / "fixed")
    if program.rule is None:
        return Verdict(program, None, fixed, None, alarms(fixed), [])
    broken = reread(program, folder / "broken")
    pairs = [StepPair(*pair) for pair in json.loads((folder / _PAIRS_FILE).read_text())]
    return Verdict(program, broken, fixed, answer(program, broken), alarms(fixed), pairs)


def row(verdict: Verdict) -> str:
    """The program's line of the table."""
    program, got = verdict.program, verdict.answer
    alarmed = "; ".join(verdict.alarms)
    failed = [code for code in verdict.exit_codes if code]
    if failed:
        alarmed += f" EXIT {failed}"
    if got is None or verdict.broken is None:
        findings = verdict.fixed.diagnosis["findings"] if verdict.fixed.diagnosis else []
        first, step = findings[0]["rule"] if findings else "nothing", _ms(verdict.fixed.step_ns)
        return f"| {program.name} | healthy | {first} |  |  |  | {step} |  |  | {alarmed} |"
    predicted = verdict.predicted
    interval = f"{predicted[0] / 1e6:.1f} to {predicted[1] / 1e6:.1f}" if predicted else ""
    saving = _ms(verdict.saving_ns) or ("not measured" if program.quantified else "not quantified")
    cells = [
        program.name,
        program.rule or "",
        got.first or "nothing",
        _word(got.right_cause),
        _word(got.right_line) + (f" ({got.at})" if got.at and not got.right_line else ""),
        interval,
        _ms(verdict.broken.step_ns),
        saving,
        _word(verdict.covered),
        alarmed,
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| program | expected | got first | right cause | right line | predicted saving, ms | step, ms "
    "| measured saving, ms | within interval | alarms in the healthy twin |\n|---|---|---|---|---|---|---|---|---|---|"
)


def totals(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The figures of the suite; None if there was nothing to count."""
    broken = [verdict for verdict in verdicts if verdict.answer is not None]
    answers = [verdict.answer for verdict in verdicts if verdict.answer is not None]
    errors = [verdict.error for verdict in broken if verdict.error is not None]
    covered = [verdict.covered for verdict in broken if verdict.covered is not None]
    scores = [verdict.score for verdict in broken if verdict.score is not None]
    widths = [verdict.width for verdict in broken if verdict.width is not None]
    return {
        "pathological": len(broken),
        "healthy runs": len(verdicts),
        "right cause first": _mean([found.right_cause for found in answers]),
        "right line": _mean([found.right_line for found in answers]),
        "healthy runs with a false alarm": sum(1 for verdict in verdicts if verdict.alarms),
        "false alarms per healthy run": _mean([len(verdict.alarms) for verdict in verdicts]),
        "median error of the predicted saving": statistics.median(errors) if errors else None,
        "coverage: measured saving within the interval": _mean(covered),
        "mean interval score over the step": _mean(scores),
        "median width of the interval over the cost": statistics.median(widths) if widths else None,
        "cannot-tell": sum(verdict.cannot_tell for verdict in verdicts),
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
        "measured_ns": verdict.saving_ns,
        "interval_score": verdict.score,
        "pairs_ns": verdict.pairs,
        "healthy_phases_ns": verdict.fixed.diagnosis["phases"] if verdict.fixed.diagnosis else None,
        "alarms": verdict.alarms,
        "cannot_tell": verdict.cannot_tell,
        "exit_codes": verdict.exit_codes,
    }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _ms(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e6:.1f}"


def _word(value: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[value]


def _written(value: Any) -> str:
    return "not measured" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite and print the tables."""
    parser = argparse.ArgumentParser(description="Compare perfkit's verdicts with the labelled suite.")
    parser.add_argument("--only", action="append", metavar="NAME", help="run one program; may be repeated")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run each program N times (default: 1)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results as JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders, to diagnose them again")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run nothing: diagnose the folder of --keep again")
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - {program.name for program in PROGRAMS}
    if unknown:
        parser.error(f"no program is called {', '.join(sorted(unknown))}; see {PATHOLOGIES}/*/labels.toml")
    chosen = [program for program in PROGRAMS if not options.only or program.name in options.only]
    verdicts = []
    print(HEAD, flush=True)
    for program in chosen * options.repeat:
        with tempfile.TemporaryDirectory() as made:
            folder = options.again or options.keep or Path(made)
            verdicts.append((judge_again if options.again else judge)(program, folder / program.name))
        print(row(verdicts[-1]), flush=True)
    figures = totals(verdicts)
    print("\n| figure | value |\n|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {_written(value)} |")
    if options.json is not None:
        results = {"totals": figures, "programs": [record(verdict) for verdict in verdicts]}
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
