"""Whether the verdict is right: every program of tests/pathologies, broken and fixed, under `perfkit run`; and the
traces of tests/planted_traces.

    python benchmarks/bench_verdict.py [--half HALF] [--only NAME] [--jobs N] [--json OUT]
                                       [--keep FOLDER] [--again FOLDER]
    python benchmarks/bench_verdict.py --trials FOLDER

The two halves are counted apart: `tuning` has the programs that took part in choosing numbers, `judging` those that did
not. Each program runs under `perfkit run`, with one thread, and then twice in turns with its corrected twin
(in_turns.py). That gives the share of the step that the correction saves, independent of the machine's other load, so
several programs may run at a time (--jobs). It is a fact about the program: what a folder of --keep has of it is not
measured again. The measured saving is this share of the judged run's step; steps are medians, or means if the cost
comes in bursts. The predicted saving is the interval of the first finding. With --again, the recordings that --keep
stored are judged by the current rules.

A false alarm is a healthy program, or a corrected twin, with a warning. A false all-clear is a broken program called
healthy although its correction saves more than 15 % of the step.

The factors of intervals (perfkit/ledger/intervals.py) are computed from the tuning half. Their coverage is also counted
with each program judged by the residuals of the others. With --trials, nothing of the suite runs: what `perfkit try`
measured in the run folders below FOLDER is compared with what was predicted there, with the factors that follow.

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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).resolve().parents[1] / "tests"
PATHOLOGIES = TESTS / "pathologies"
sys.path[:0] = [str(PATHOLOGIES), str(TESTS / "planted_traces")]

from in_turns import StepPair, measure  # noqa: E402 - found through the line above
from interval_score import MIN_RESIDUALS, interval_score, quantile, residual  # noqa: E402 - found through the line above
from judging import Answer, Run, alarms, answer, outcome, reread, run  # noqa: E402 - found through the line above
from suite import HALVES, PROGRAMS, Half, Program  # noqa: E402 - found through the line above
from trace_judging import judge as judge_trace  # noqa: E402 - found through the line above
from trace_judging import table as trace_table  # noqa: E402 - found through the line above
from trace_suite import traces_of  # noqa: E402 - found through the line above
from tried_savings import TriedSaving, tried_savings  # noqa: E402 - found through the line above

from perfkit.ledger.intervals import scale_of  # noqa: E402
from perfkit.rules._engine import find_rules  # noqa: E402

#: A pair measured in turns is off by up to a sixth of the saving, and by more if it depends on workers or caches.
_PAIRS = 2
#: The pairs of a program, next to its recordings. Recordings are kept over versions: the name stays.
_PAIRS_FILE = "gains.json"
#: Share of the step that a correction saves -> calling the program healthy is an error, not a matter of thresholds.
_ALL_CLEAR = 0.15


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
    def family(self) -> str:
        """The family of the rule that was found first, "" without one."""
        first = self.answer.first if self.answer is not None else None
        return next((rule.family for rule in find_rules() if rule.id == first), "")

    @property
    def residual(self) -> float | None:
        """How far the measured saving lies from the middle of the range that the rule gave, in half ranges."""
        if self.predicted is None or self.saving_ns is None:
            return None
        return residual(*self.predicted, self.saving_ns, scale_of(self.family))

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
    def says_healthy(self) -> bool:
        """Whether the verdict on the broken program, or on the healthy one if there is no other, is "healthy"."""
        return outcome(self.broken or self.fixed) == "healthy"

    @property
    def false_all_clear(self) -> bool:
        """Whether a broken program is called healthy although its correction saves much."""
        return self.broken is not None and self.says_healthy and (self.saved_share or 0) > _ALL_CLEAR


def judge(program: Program, folder: Path) -> Verdict:
    """Run a program, and its corrected twin if it has one."""
    fixed = run(program, folder / "fixed", fixed=program.rule is not None)
    if program.rule is None:
        return Verdict(program, None, fixed, None, alarms(fixed), [])
    broken = run(program, folder / "broken", fixed=False)
    if not (folder / _PAIRS_FILE).exists():
        pairs = [measure(program, folder / f"pair-{index}") for index in range(_PAIRS if program.quantified else 0)]
        (folder / _PAIRS_FILE).write_text(json.dumps(pairs))
    return Verdict(program, broken, fixed, answer(program, broken), alarms(fixed), _kept_pairs(folder))


def _kept_pairs(folder: Path) -> list[StepPair]:
    return [StepPair(*pair) for pair in json.loads((folder / _PAIRS_FILE).read_text())]


def judge_again(program: Program, folder: Path) -> Verdict:
    """Judge what an earlier `judge` recorded, by the current rules."""
    fixed = reread(program, folder / "fixed")
    if program.rule is None:
        return Verdict(program, None, fixed, None, alarms(fixed), [])
    broken = reread(program, folder / "broken")
    return Verdict(program, broken, fixed, answer(program, broken), alarms(fixed), _kept_pairs(folder))


def left_out(verdicts: Sequence[Verdict]) -> list[bool]:
    """For each residual whether it is within the quantile of the other programs' residuals, of its kind of cause."""
    known = [(verdict.family, value) for verdict in verdicts if (value := verdict.residual) is not None]
    covered = []
    for at, (family, value) in enumerate(known):
        others = known[:at] + known[at + 1 :]
        own = [one for kind, one in others if kind == family]
        basis = own if len(own) >= MIN_RESIDUALS else [one for _, one in others]
        if basis:
            covered.append(value <= quantile(basis))
    return covered


def scales(measured: Iterable[Verdict | TriedSaving]) -> Iterator[str]:
    """The lines of the table that `perfkit.ledger.intervals` takes its factors from."""
    residuals: dict[str, list[float]] = {}
    for one in measured:
        if (value := one.residual) is not None:
            residuals.setdefault(one.family, []).append(value)
    every = [value for values in residuals.values() for value in values]
    yield from ("| kind of cause | programs | factor of the range |", "|---|---|---|")
    for family, values in sorted(residuals.items()):
        factor = f"{quantile(values):.2f}" if len(values) >= MIN_RESIDUALS else "that of all"
        yield f"| {family} | {len(values)} | {factor} |"
    if every:
        yield f"| all | {len(every)} | {quantile(every):.2f} |"


def row(verdict: Verdict) -> str:
    """The program's line of the table."""
    program, got = verdict.program, verdict.answer
    alarmed = "; ".join(verdict.alarms)
    failed = [code for code in verdict.exit_codes if code]
    if failed:
        alarmed += f" EXIT {failed}"
    kind = "" if program.kind is None else str(program.kind)
    if got is None or verdict.broken is None:
        said = outcome(verdict.fixed)
        return f"| {program.name} | {kind} | healthy | {said} | | | | | {_ms(verdict.fixed.step_ns)} | | | {alarmed} |"
    predicted = verdict.predicted
    cells = [
        program.name,
        kind,
        program.rule or "",
        got.first or "nothing",
        _word(got.right_cause) + (", in three" if got.in_three and not got.right_cause else ""),
        _word(got.right_spent) + (f" ({got.spent})" if got.spent and got.right_spent is False else ""),
        _word(got.right_change) + (f" ({got.change})" if got.change and got.right_change is False else ""),
        f"{predicted[0] / 1e6:.1f} to {predicted[1] / 1e6:.1f}" if predicted else "",
        _ms(verdict.broken.step_ns),
        _ms(verdict.saving_ns) or ("not measured" if program.quantified else "not quantified"),
        _word(verdict.covered),
        alarmed,
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| program | kind | expected | got first | right cause | right spent line | right change line "
    "| predicted saving, ms | step, ms | measured saving, ms | within interval | alarms in the healthy twin |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def totals(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The figures of some programs; None if there was nothing to count."""
    broken = [verdict for verdict in verdicts if verdict.answer is not None]
    answers = [verdict.answer for verdict in verdicts if verdict.answer is not None]
    outcomes = [outcome(verdict.broken or verdict.fixed) for verdict in verdicts]
    alarmed = sum(1 for verdict in verdicts if verdict.alarms)
    return {
        "broken programs": len(broken),
        "healthy runs": len(verdicts),
        "right cause first": _mean(found.right_cause for found in answers),
        "right cause among the first three": _mean(found.in_three for found in answers),
        "right spent line": _mean(found.right_spent for found in answers),
        "right change line": _mean(found.right_change for found in answers),
        "false alarms": alarmed,
        "false alarms, 1 in": len(verdicts) / alarmed if alarmed else None,
        "false all-clears": sum(verdict.false_all_clear for verdict in verdicts),
        "healthy programs called healthy": _mean(v.says_healthy for v in verdicts if v.answer is None),
        "cannot tell": outcomes.count("cannot-tell"),
        "unexplained": outcomes.count("unexplained"),
        "median error of the predicted saving": _median(verdict.error for verdict in broken),
        "coverage: measured saving within the interval": _mean(verdict.covered for verdict in broken),
        "the same, factors from the other programs alone": _mean(left_out(broken)),
        "mean interval score over the step": _mean(verdict.score for verdict in broken),
        "median width of the interval over the cost": _median(verdict.width for verdict in broken),
    }


#: The figures that are also counted for each kind of failure, and what they are called in the columns of that table.
_BY_KIND = {
    "broken programs": "broken",
    "right cause first": "cause first",
    "right cause among the first three": "in three",
    "right spent line": "spent line",
    "right change line": "change line",
    "healthy runs": "healthy runs",
    "false alarms": "false alarms",
    "false all-clears": "false all-clears",
    "cannot tell": "cannot tell",
    "unexplained": "unexplained",
}


def summary(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The lines of a half's tables: figures, the factors of intervals, and some figures for each kind of failure."""
    yield from ("| figure | value |", "|---|---|")
    for name, value in totals(verdicts).items():
        yield f"| {name} | {_written(value)} |"
    yield ""
    yield from scales(verdicts)
    yield ""
    yield "| kind | " + " | ".join(_BY_KIND.values()) + " |"
    yield "|---" * (len(_BY_KIND) + 1) + "|"
    kinds = sorted({verdict.program.kind or 0 for verdict in verdicts})
    for kind in kinds:
        figures = totals([verdict for verdict in verdicts if (verdict.program.kind or 0) == kind])
        yield f"| {kind or 'plain'} | " + " | ".join(_written(figures[name]) for name in _BY_KIND) + " |"


def trials(folder: Path) -> Iterator[str]:
    """The lines of the tables of what was predicted and then tried in the run folders below ``folder``."""
    savings = list(tried_savings(folder))
    yield "| program | change | kind of cause | predicted | measured | within interval |"
    yield "|---|---|---|---|---|---|"
    for one in savings:
        cells = (
            one.program,
            one.change,
            one.family,
            f"{one.low:.3f} to {one.high:.3f}",
            f"{one.measured:.3f}",
            _word(one.covered),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield f"Within the interval: {_written(_mean(one.covered for one in savings))} of {len(savings)}."
    yield ""
    yield from scales(savings)


def record(verdict: Verdict) -> dict[str, Any]:
    """One verdict as JSON."""
    got = verdict.answer
    return {
        "program": verdict.program.name,
        "half": verdict.program.half,
        "kind": verdict.program.kind,
        "expected": verdict.program.rule,
        "outcome": outcome(verdict.broken or verdict.fixed),
        "answer": got._asdict() if got else None,
        "predicted_ns": verdict.predicted,
        "broken_ns": verdict.broken.step_ns if verdict.broken else None,
        "fixed_ns": verdict.fixed.step_ns,
        "measured_ns": verdict.saving_ns,
        "interval_score": verdict.score,
        "pairs_ns": verdict.pairs,
        "healthy_phases_ns": verdict.fixed.diagnosis["phases"] if verdict.fixed.diagnosis else None,
        "alarms": verdict.alarms,
        "false_all_clear": verdict.false_all_clear,
        "exit_codes": verdict.exit_codes,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that were measured."""
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured else None


def _median(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None


def _ms(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e6:.1f}"


def _word(value: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[value]


def _written(value: Any) -> str:
    return "not measured" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def judge_all(programs: Sequence[Program], options: argparse.Namespace) -> Iterator[Verdict]:
    """Judge the programs, some at a time, in their order; a line on stderr for each that is done."""

    def judged(program: Program) -> Verdict:
        with tempfile.TemporaryDirectory() as made:
            folder = options.again or options.keep or Path(made)
            return (judge_again if options.again else judge)(program, folder / program.name)

    with ThreadPoolExecutor(options.jobs) as pool:
        for number, verdict in enumerate(pool.map(judged, programs), start=1):
            print(f"{number} of {len(programs)}: {verdict.program.name}", file=sys.stderr, flush=True)
            yield verdict


def traces(half: Half) -> dict[str, str]:
    """Judge the planted traces of a half, and print the counts; of the tuning half also which answers are wrong."""
    answers = [judge_trace(trace) for trace in traces_of(half)]
    found = dict(trace_table(answers))
    print(f"| {len(answers)} planted traces | count |\n|---|---|")
    for name, count in found.items():
        print(f"| {name} | {count} |")
    print(flush=True)
    if half == "tuning":
        wrong = [f"{each.trace.name} ({each.outcome}, first {each.first})" for each in answers if not each.right]
        print(f"Wrong: {', '.join(wrong) or 'none'}.\n", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite and print the tables."""
    parser = argparse.ArgumentParser(description="Compare perfkit's verdicts with the labelled suite.")
    parser.add_argument("--half", choices=HALVES, help="run one half (default: both)")
    parser.add_argument("--only", action="append", metavar="NAME", help="run one program; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="run N programs at a time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results as JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders, to diagnose them again")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run nothing: diagnose the folder of --keep again")
    parser.add_argument("--trials", type=Path, metavar="FOLDER", help="only compare what `perfkit try` measured there")
    options = parser.parse_args(arguments)
    if options.trials is not None:
        try:
            print(*trials(options.trials), sep="\n")
        except ValueError as error:
            parser.error(str(error))
        return 0
    unknown = set(options.only or ()) - {program.name for program in PROGRAMS}
    if unknown:
        parser.error(f"no program is called {', '.join(sorted(unknown))}; see {PATHOLOGIES}/*/labels.toml")
    results: dict[str, Any] = {}
    for half in HALVES:
        chosen = [p for p in PROGRAMS if p.half == half and (not options.only or p.name in options.only)]
        if options.half not in (None, half) or not chosen:
            continue
        not_run = {p.name: p.missing for p in chosen if p.missing}
        print(f"### {half}\n\n{HEAD}", flush=True)
        verdicts = []
        for verdict in judge_all([p for p in chosen if p.name not in not_run], options):
            verdicts.append(verdict)
            print(row(verdict), flush=True)
        print("", *summary(verdicts), "", sep="\n", flush=True)
        for name, needed in not_run.items():
            print(f"Not run: {name} needs {', '.join(needed)} (libraries: the group `suite`).\n", flush=True)
        programs = [record(verdict) for verdict in verdicts]
        results[half] = {"totals": totals(verdicts), "programs": programs, "not_run": not_run}
        if not options.only:
            results[half]["traces"] = traces(half)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
