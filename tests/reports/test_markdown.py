"""The markdown report: complete, and no name from a trace becomes markup."""

from __future__ import annotations

import io

import msgspec
import pytest
from markdown_it import MarkdownIt

from perfkit._location import Location
from perfkit.comparison.results import Comparison, Difference
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.steps import TypicalStep
from perfkit.reports.markdown import write_markdown
from perfkit.rules._engine import RuleNotAsked
from perfkit.run.records import Phases

MS = 1_000_000
HOSTILE = ["<script>alert(1)</script>", "[x](javascript:alert(1))", "a|b", "`; rm -rf`", "![i](http://x/y.png)", "# h"]


def text_of(answer: Diagnosis | Comparison) -> str:
    file = io.StringIO()
    write_markdown(answer, file)
    return file.getvalue()


def diagnosis(name: str) -> Diagnosis:
    phases = Phases(data=20 * MS, forward=30 * MS)
    finding = Finding(
        rule="input-bound",
        severity="critical",
        message=f"Waiting in {name}.",
        advice=f"Do {name} once.",
        confidence="high",
        spent=Location(file=f"{name}.py", line=12),
        cost_ns=20 * MS,
        saving_low_ns=10 * MS,
        saving_high_ns=20 * MS,
        evidence=(Evidence(name, 20.0, "ms", name),),
    )
    return Diagnosis(
        source="runs/a", verdict="A step takes 50.0 ms.", phases=phases, findings=(finding,), missing=(name,),
        step=TypicalStep(
            steps=9, wall_ns=50 * MS, median_ns=50 * MS, p10_ns=1, p90_ns=1, phases_ns=phases, source="steps.jsonl"
        ),
    )  # fmt: skip


def test_a_diagnosis_has_its_verdict_phases_finding_and_evidence() -> None:
    text = text_of(diagnosis("tokenize"))

    assert text.startswith("**A step takes 50.0 ms.**\n")
    assert "| data | 20.0 ms | 40% |" in text
    assert "### 1. input-bound at `tokenize.py:12`" in text
    assert "**20.0 ms per step, saves 10.0-20.0 ms** (critical, confidence high)" in text
    assert "| tokenize | 20.0 ms | tokenize |" in text


def test_rules_that_were_not_asked_are_folded_with_what_they_need() -> None:
    not_asked = (RuleNotAsked(rule="slow-rank", needs=("two ranks", "a window")),)

    text = text_of(msgspec.structs.replace(diagnosis("tokenize"), not_asked=not_asked))

    assert "<summary>rules that were not asked</summary>" in text
    assert "| slow-rank | two ranks and a window |" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_markup(name: str) -> None:
    tokens = MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(text_of(diagnosis(name)))
    inline = [child for token in tokens for child in token.children or ()]

    assert not {child.type for child in inline} & {"html_inline", "link_open", "image"}
    assert {token.content.strip() for token in tokens if token.type == "html_block"} <= {
        "<details><summary>evidence</summary>", "</details>"
    }  # fmt: skip
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h3"]


def test_a_comparison_has_a_row_per_difference_and_its_broken_budgets() -> None:
    answer = Comparison(
        before="a", after="b", verdict="A step is slower.", broken=("syncs: 0 → 2, at most 0 more are allowed",),
        differences=(
            Difference(kind="step", name="step", before_ns=40 * MS, after_ns=50 * MS, change="slower"),
            Difference(kind="op", name="a|b", before_ns=None, after_ns=5 * MS),
        ),
    )  # fmt: skip

    text = text_of(answer)

    assert "| step | 40.0 ms | 50.0 ms | +25% | slower |" in text
    assert "| op `a\\|b` | - | 5.0 ms | new | not tested |" in text
    assert "- **Broken budget:** syncs: 0 → 2" in text
