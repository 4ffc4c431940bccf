"""The verdict on many ranks fits a screen, whatever the job is."""

from __future__ import annotations

import io
from typing import get_args

import msgspec
import pytest

from perfkit.ranks.diagnosing import RanksDiagnosis
from perfkit.ranks.late_causes import Cause
from perfkit.ranks.path_diagnosis import DiagnosedRanks
from perfkit.reports.console import console_for
from perfkit.reports.ranks.terminal import print_ranks
from tests.ranks.build import ranks_diagnosis


def printed(found: RanksDiagnosis, columns: int = 80, traces: dict[int, str] | None = None) -> list[str]:
    file = io.StringIO()
    print_ranks(DiagnosedRanks(found, traces or {}, 0), console_for(file, columns=columns, terminal=False))
    return file.getvalue().splitlines()


def test_the_screen_has_verdict_step_ranks_causes_clocks_traces_and_what_to_do() -> None:
    traces = {rank: f"runs/x/rank-{rank}/window-0.pt.trace.json.gz" for rank in range(8)}
    assert printed(ranks_diagnosis(), traces=traces) == [
        "runs/x · 8 of 8 ranks · 1,000 steps from 0 to 999 · from rows",
        "Rank 3 (node0) waits for its data in most steps.",
        "Step 100 ms: waiting for later ranks 26.0 ms (26%), transfer 4.0 ms (4%)",
        "",
        "per step  host   own time    waits  makes others wait  last in",
        "rank 3    node0   80.0 ms     0 ns             210 ms     100%",
        "rank 5    node0   50.0 ms  30.0 ms               0 ns       0%",
        "rank 0    node0   50.0 ms  30.0 ms               0 ns       0%",
        "rank 1    node0   50.0 ms  30.0 ms               0 ns       0%",
        "4 more: --json",
        "",
        "late    by          in                late by  saves per step",
        "rank 3  data        most steps (98%)  31.0 ms   30.0 ms (30%)",
        "rank 5  checkpoint  once              31.0 ms     4.0 ms (4%)",
        "",
        "clocks of 2 hosts, 2.0 h apart: aligned to 12 µs",
        "perfkit diagnose runs/x/rank-3/window-0.pt.trace.json.gz  # rank 3, late",
        "perfkit diagnose runs/x/rank-0/window-0.pt.trace.json.gz  # rank 0, waits most",
        "perfkit diagnose runs/x/rank-6/window-0.pt.trace.json.gz  # rank 6, ordinary",
        "Next: look at the loader, the shards and the storage of rank 3",
    ]


@pytest.mark.parametrize("columns", [80, 60, 200])
def test_no_job_is_longer_than_25_lines(columns: int) -> None:
    finding = ranks_diagnosis().findings[0]
    host = "very-long-name-of-a-host.cluster.example.com"
    named = msgspec.structs.replace(finding, ranks=tuple(range(64)), hosts=(host,) * 8, detail="x" * 300)
    found = ranks_diagnosis(
        10_000,
        findings=(named,) * 20,
        verdict="word " * 200,
        missing=tuple(f"{i}. sentence about something. " * 9 for i in range(300)),
    )
    lines = printed(found, columns, {rank: f"runs/{rank}/window" for rank in range(10_000)})
    assert len(lines) <= 25
    assert max(map(len, lines)) <= columns
    assert any("notes more: --json" in line for line in lines)


@pytest.mark.parametrize("cause", get_args(Cause))
def test_every_cause_has_a_next_step(cause: Cause) -> None:
    finding = msgspec.structs.replace(ranks_diagnosis().findings[0], cause=cause)
    assert any(line.startswith("Next: ") for line in printed(ranks_diagnosis(findings=(finding,))))


def test_a_job_in_which_another_rank_is_late_each_time_names_none() -> None:
    finding = msgspec.structs.replace(ranks_diagnosis().findings[0], subject="job", ranks=(), hosts=(), cause="link")
    lines = printed(ranks_diagnosis(findings=(finding,)))
    assert any(line.startswith("another rank each time  link") for line in lines)
    assert any(line.startswith("Next: test the network of all ranks") for line in lines)


def test_what_was_not_measured_is_no_zero() -> None:
    rows = tuple(msgspec.structs.replace(one, waiting_ns=None) for one in ranks_diagnosis().ranks)
    lines = printed(ranks_diagnosis(ranks=rows, waiting_ns=None, transfer_ns=None, clocks=(), measured_by="phases"))
    assert [line for line in lines if line.endswith("waiting was not measured")]
    assert next(line for line in lines if line.startswith("rank 3")).split()[5] == "-"
    assert not [line for line in lines if "clocks" in line or "transfer" in line]


def test_what_several_ranks_lack_is_said_once() -> None:
    lines = printed(
        ranks_diagnosis(missing=("rank 0: cut", "rank 3: cut", "rank 4: no host", "1 of 9 ranks are missing"))
    )
    notes = [line for line in lines if line.startswith("Note")]
    assert notes == ["Note: 2 ranks: cut", "Note: rank 4: no host", "Note: 1 of 9 ranks are missing"]


def test_control_characters_of_a_host_reach_no_terminal() -> None:
    rows = tuple(msgspec.structs.replace(one, host="a\x1b[31mb") for one in ranks_diagnosis().ranks)
    text = "\n".join(printed(ranks_diagnosis(ranks=rows, verdict="x\x1b]0;y"), traces={3: "a\x07b"}))
    assert not set(text) & set("\x1b\x07")
