"""Every path that prints: text that perfkit did not write is shown letter by letter, and acts on no terminal."""

from __future__ import annotations

import io
import os
import re
import time
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfkit._location import Location
from perfkit._text import printable
from perfkit.commands import demo, doctor, main, trigger, what_if
from perfkit.commands._progress import reading_bar, working
from perfkit.commands.try_ import _progress
from perfkit.comparison.results import Comparison, Count, Difference
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding
from perfkit.history.results import History, RunSummary, SkippedRun, StepChange, WorkloadHistory
from perfkit.latency.results import BatchLatency, Latency
from perfkit.ranks.path_diagnosis import DiagnosedRanks
from perfkit.replay.results import PathRow, WhatIf
from perfkit.reports.console import stdout_console
from perfkit.reports.history import print_history
from perfkit.reports.live import print_live
from perfkit.reports.ranks.terminal import print_ranks, print_ranks_verdict
from perfkit.reports.sweep import print_sweep
from perfkit.reports.tables._table import Column, Table
from perfkit.reports.tables._writing import print_rows
from perfkit.reports.terminal import print_comparison, print_diagnosis, print_first_verdict
from perfkit.reports.trial import print_trial
from perfkit.run.follower import RunFollower
from perfkit.run.records import Sweep, SweepPoint, SyncEvent, Trial, TriedChange
from perfkit.syncs.results import SyncResults
from tests.ranks.build import ranks_diagnosis

MS = 1_000_000
#: What rich, a terminal or a reader's eye might take for more than letters, between letters.
OUTSIDE = st.lists(
    st.one_of(
        st.sampled_from([
            "[bold]", "[/]", "[/bold]", "[link=file:///x]", "[@click=f]", "[nvml]", "\\[", ":warning:", "\x1b[31m",
            "\x1b]8;;http://x\x1b\\", "\x1b]0;title\x07", "\x9b31m", "\r", "\x08", "\u202e", "\u2066", "\u200b", "\x00",
        ]),
        st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=6,
).map(lambda parts: f"<{''.join(parts)}>")  # fmt: skip
#: A style of rich's own, what its bars and spinners do with a line, and the end of a line.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[\d*A|\r|\n")
ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def put(tree: Any, text: str, of: Any = None) -> Any:
    """The same with ``text`` after every text in it that may be any: names, places, sentences; not the kinds."""
    if isinstance(tree, str):
        return f"{tree}{text}" if of is str else tree
    if isinstance(tree, msgspec.Struct) or hasattr(tree, "__dataclass_fields__") or hasattr(tree, "_asdict"):
        hints = typing.get_type_hints(type(tree))
        names = getattr(tree, "__struct_fields__", None) or list(hints)
        changed = {name: put(getattr(tree, name), text, inner(hints[name])) for name in names if name in hints}
        return type(tree)(**changed)
    if isinstance(tree, tuple):
        return tuple(put(one, text, of) for one in tree)
    return tree


def inner(hint: Any) -> Any:
    """str for a hint of text, of text or None, and of several texts; None for kinds and all else."""
    if hint is str:
        return str
    if typing.get_origin(hint) in (typing.Union, types.UnionType, tuple):
        return str if str in typing.get_args(hint) else None
    return None


@contextmanager
def a_terminal() -> Iterator[io.StringIO]:
    """Stdout and stderr are a wide terminal with colours."""
    written = io.StringIO()
    wide = {"FORCE_COLOR": "1", "COLUMNS": "4000", "TERM": "xterm-256color"}
    with mock.patch.dict(os.environ, wide), redirect_stdout(written), redirect_stderr(written):
        os.environ.pop("NO_COLOR", None)
        yield written


def check(written: str, text: str) -> None:
    """It is there with all its letters, and nothing but rich's own styles and lines acts."""
    shown = OWN.sub("", written)
    assert not ACTS.search(shown), ACTS.search(shown)
    for one in filter(ACTS.match, text):  # tables have escapes, lest two names become one
        shown = shown.replace(f"\\u{ord(one):04x}", "?")
    # Characters that act are "?", or nothing where rich drops them (a bell, a backspace) before it is asked.
    assert _letters(printable(text)) in _letters(shown)


def _letters(text: str) -> str:
    return "".join(text.replace("?", "").split())


FINDING = Finding(
    rule="input-bound", severity="critical", message="It waits", advice="Change it", confidence="high",
    spent=Location(file="a.py", line=3, function="f"), change=Location(file="b.py", line=4, function="g"),
    cost_ns=45 * MS, saving_low_ns=20 * MS, saving_high_ns=45 * MS,
)  # fmt: skip
WAY = dict[str, Callable[[str], None]]


def printed_results() -> WAY:
    """What is printed of results, by name."""
    compared = Comparison(
        before="a", after="b", verdict="It is faster.", counts=(Count(name="syncs", before=1, after=0),),
        differences=tuple(
            Difference(kind=kind, name="op", before_ns=80, after_ns=35) for kind in ("range", "op", "kernel")
        ),
        gone=(FINDING,), new=(FINDING,), changed=("torch",), broken=("step",), notes=("note",),
    )  # fmt: skip
    change = TriedChange(
        names=("tf32",), outcome="no-difference", saving=0.1, ci=(0.0, 0.1), before_ns=65e6, after_ns=65e6
    )
    failed = TriedChange(names=("compile",), outcome="failed", sentence="no compiler")
    trial = Trial(
        program="t.py", verdict="It is.", folder="runs/t", changes=(change, failed), patch="+x", unpatched=("y",),
        notes=("n",), seconds=1.0,
    )  # fmt: skip
    point = SweepPoint(value=16, reruns=2, steps=80, step_ns=MS, per_s=5.0, note="slow")
    sweep = Sweep(program="t.py", verdict="It is.", own=16, points=(point,), notes=("n",), seconds=1.0, reserve=0.1)
    runs = tuple(
        RunSummary(path=path, start_unix_ns=10**18, wall_ns=MS, median_ns=MS, finding="f", commit="c", notes=("n",))
        for path in "ab"
    )
    step = StepChange(
        at=1, path="b", start_unix_ns=10**18, before_ns=MS, after_ns=2 * MS, share=1.0, low=0.9, high=1.1,
        commit_before="c", commit="d", also=("torch",),
    )  # fmt: skip
    workload = WorkloadHistory(name="t.py", machine="host", runs=runs, changes=(step,), verdict="It is slower.")
    history = History(source="runs", workloads=(workload,), skipped=(SkippedRun("z", "damaged"),))
    row = PathRow(owner="ops", name="aten::mm", ns=MS, share=1.0, at=FINDING.spent)
    answer = WhatIf(
        source="t.json", per="step", steps=3, step_ns=MS, low_ns=MS, ideal_ns=MS, expected_ns=MS, high_ns=MS,
        on_device=True, path=(row,), new_path=(row,), notes=("n",), changes=("gemm=0.5",),
    )  # fmt: skip
    batch = BatchLatency(batch_size=1, samples=9, p50_ns=MS, p90_ns=MS, samples_per_s=1.0, stable=True)
    latency = Latency(
        model="Net", device="cuda:0", device_name="A100", threads=4, inference_mode=True,
        batches=(batch, BatchLatency(batch_size=2, problem="no memory")),
    )  # fmt: skip
    table = Table(
        id="ops", title="Ops", columns=(Column("name", "text"), Column("place", "place")), rows=(("mm", "a.py"),)
    )
    ranks = DiagnosedRanks(ranks_diagnosis(), {3: "rank-3/window-0"}, 0)
    return {
        "comparison": lambda text: print_comparison(put(compared, text), stdout_console()),
        "trial": lambda text: print_trial(put(trial, text), stdout_console()),
        "sweep": lambda text: print_sweep(put(sweep, text), stdout_console()),
        "history": lambda text: print_history(put(history, text), stdout_console(), all=True),
        "what-if": lambda text: what_if._print(put(answer, text)),
        "latency": lambda text: stdout_console().print(put(latency, text).table()),
        "latency as text": lambda text: print(put(latency, text)),
        "table": lambda text: print_rows(
            msgspec.structs.replace(table, title=f"T{text}", rows=((f"n{text}", f"p{text}"),)), 1, stdout_console()
        ),
        "ranks": lambda text: print_ranks(
            DiagnosedRanks(put(ranks.diagnosis, text), {3: f"t{text}"}, 0), stdout_console()
        ),
        "ranks, verdict alone": lambda text: print_ranks_verdict(
            DiagnosedRanks(put(ranks.diagnosis, text), {}, 0), stdout_console()
        ),
    }


def printed_by_commands() -> WAY:
    """What commands print themselves, by name."""

    def doctors(text: str) -> None:
        with (
            mock.patch.object(doctor, "facts", return_value=[(f"GPU{text}", f"A100{text}")]),
            mock.patch.object(doctor, "limits_of_machine", return_value=[]),
        ):
            main(["doctor"])

    def reading(text: str) -> None:
        with mock.patch("perfkit.commands._progress._PATIENCE_S", 0), reading_bar(f"reading {text}") as report:
            report(1, 2)

    def comparing(text: str) -> None:
        with mock.patch("perfkit.commands._progress._PATIENCE_S", 0), working(f"comparing {text}"):
            time.sleep(0.02)

    def trying(text: str) -> None:
        with _progress() as report:
            report(text, 3.0)

    def corrected(text: str) -> None:
        demo._print_savings(MS, [([put(FINDING, text)], MS), ([FINDING, FINDING], MS)], stdout_console())

    def any_string(text: str) -> None:
        stdout_console().print(f"page {text}")

    return {
        "doctor": doctors,
        "reading": reading,
        "comparing": comparing,
        "trying": trying,
        "demo": corrected,
        "a string": any_string,
    }


RESULTS = {**printed_results(), **printed_by_commands()}
QUICK = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("way", list(RESULTS))
@QUICK
@given(text=OUTSIDE)
@example(text="<[bold]x[/]\x1b[31m\u202e[link=file:///etc]>")
@example(text="<[/]>")
def test_no_screen_takes_text_from_outside_for_markup_or_commands(way: str, text: str) -> None:
    with a_terminal() as written:
        RESULTS[way](text)

    check(written.getvalue(), text)


@QUICK
@given(text=OUTSIDE)
@example(text="<[bold]x[/]\x1b[31m\u202e[link=file:///etc]>")
def test_no_verdict_does(text: str, accounted: Diagnosis) -> None:
    diagnosis = put(accounted, text)
    for reporter in (print_diagnosis, print_first_verdict):
        for options in ({"all": True}, {}) if reporter is print_diagnosis else ({},):
            with a_terminal() as written:
                reporter(diagnosis, stdout_console(), **options)
            check(written.getvalue(), text)


@QUICK
@given(text=OUTSIDE.filter(lambda text: "\x00" not in text and "/" not in text))
@example(text="<[bold]x[link=y]\x1b[31m\u202e>")
def test_no_view_of_a_run_that_goes_on_does(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run") / f"run{text}"
    (folder / "rank-0").mkdir(parents=True)
    Path(folder / "run.json").write_text(
        '{"schema": 1, "launch_id": "x", "command": [], "folder": "", "world_size": 1}'
    )
    live = RunFollower(folder)
    diagnosis = Diagnosis(source=text, verdict=text, findings=(put(FINDING, text),))
    with a_terminal() as written:
        print_live(live, live.ranks[0], diagnosis, None, stdout_console())

    check(written.getvalue(), text)


@QUICK
@given(text=OUTSIDE)
def test_no_table_of_syncs_does(text: str) -> None:
    event = SyncEvent(file="a.py", line=3, function="f", kind="item", op="item", count=2, raw_syncs=2, advice="x")
    results = SyncResults("dry", mock.MagicMock())
    with mock.patch.object(SyncResults, "events", (put(event, text),)), a_terminal() as written:
        stdout_console().print(results.table())

    check(written.getvalue(), text)


@QUICK
@given(text=OUTSIDE.filter(lambda text: "/" not in text))
@example(text="<[bold]x[link=y]\x1b[31m\u202e>")
def test_the_path_of_a_window_is_as_it_is_for_a_program_alone(text: str) -> None:
    with mock.patch.object(trigger, "_result", return_value=Path(f"run{text}")):
        with a_terminal() as terminal, mock.patch.object(terminal, "isatty", return_value=True):
            trigger._wait([mock.MagicMock(index=0)], {0: -1}, None)
        with a_terminal() as pipe:
            trigger._wait([mock.MagicMock(index=0)], {0: -1}, None)

    check(terminal.getvalue(), text)
    assert pipe.getvalue() == f"run{text}\n"


@pytest.mark.parametrize(
    "arguments", [("which",), ("explain",), ("trigger",), ("diagnose",), ("--no-such",), ("watch",)], ids=" ".join
)
@QUICK
@given(text=OUTSIDE.filter(lambda text: "\x00" not in text))
@example(text="<[bold]x[/]\x1b[31m\u202e[link=file:///etc]>")
def test_no_answer_to_what_was_typed_does(arguments: tuple[str, ...], text: str) -> None:
    with a_terminal() as written:
        main([*arguments, text])

    assert written.getvalue()
    assert not ACTS.search(OWN.sub("", written.getvalue()))
