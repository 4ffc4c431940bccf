"""The diagnosis of many ranks as markdown."""

from __future__ import annotations

import io

from perfkit.ranks.path_diagnosis import DiagnosedRanks
from perfkit.reports.ranks.markdown import write_ranks_markdown
from tests.ranks.build import ranks_diagnosis


def written(found: DiagnosedRanks) -> str:
    file = io.StringIO()
    write_ranks_markdown(found, file)
    return file.getvalue()


def test_it_has_the_verdict_what_is_late_what_to_open_and_each_rank() -> None:
    text = written(DiagnosedRanks(ranks_diagnosis(), {3: "t/rank-3.json"}, 0))
    assert text.startswith("**Rank 3 (node0) waits for its data in most steps.**\n")
    assert "| rank 3 | node0 | data | most steps (98%) | 31.0 ms | 30.0 ms (30%) |" in text
    assert "- `perfkit diagnose t/rank-3.json` (rank 3, late)" in text
    assert "Next: look at the loader, the shards and the storage of rank 3\n" in text
    assert "<details><summary>8 ranks</summary>" in text
    assert "| 3 | node0 | 80.0 ms | 0 ns | 210 ms | 100% |" in text


def test_of_many_ranks_the_table_has_those_with_the_longest_own_time() -> None:
    text = written(DiagnosedRanks(ranks_diagnosis(10_000), {}, 0))
    assert "<summary>100 of 10,000 ranks</summary>" in text
    assert "\n| 3 | node0 | 80.0 ms |" in text
    assert len(text) < 65_536


def test_names_from_outside_become_no_markup() -> None:
    diagnosis = ranks_diagnosis(host="<img src=x>|*b*", missing=("rank 1: <b>lost</b>",), source="a`b|c")
    text = written(DiagnosedRanks(diagnosis, {3: "t`<i>.json"}, 0))
    assert "<img" not in text.replace("\\<img", "")
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "`perfkit diagnose t'<i>.json`" in text


def test_ranks_that_cannot_be_compared_have_the_verdict_and_the_notes() -> None:
    empty = ranks_diagnosis(
        verdict="Cannot tell which rank is late: x.", outcome="cannot-tell", wall_ns=None, findings=(), ranks=(),
        clocks=(), measured_by=None, steps=0, missing=("no steps",),
    )  # fmt: skip
    text = written(DiagnosedRanks(empty, {}, 0))
    assert text.startswith("**Cannot tell which rank is late: x.**")
    assert "- Note: no steps" in text
    assert "|" not in text
