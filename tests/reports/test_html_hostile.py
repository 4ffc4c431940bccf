"""Names that want to act: the HTML page shows them as they are, and nothing it holds can act."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit._text import clean
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.findings import Evidence, Finding
from perfkit.reports.figures import FigureData, figures_of, read_figures
from perfkit.reports.html import render_html, write_html

#: What must be true of the page whatever it was given: elements and attributes that only markup could have made.
INTRUDERS = """(() => {
  const tags = ['IMG', 'IFRAME', 'OBJECT', 'EMBED', 'FORM', 'INPUT', 'BASE', 'LINK', 'VIDEO', 'AUDIO', 'TEXTAREA',
    'SELECT', 'TEMPLATE', 'PLAINTEXT', 'MARQUEE', 'B', 'MATH', 'XSS', 'X'];
  const acts = (attribute, of) => attribute.name.startsWith('on')
    || (attribute.name === 'href' && !attribute.value.startsWith('#'))
    || (['src', 'srcdoc', 'action', 'formaction', 'style'].includes(attribute.name) && !of.classList.contains('tip'));
  const found = [...document.querySelectorAll('*')]
    .filter(one => tags.includes(one.tagName.toUpperCase()) || [...one.attributes].some(a => acts(a, one)))
    .map(one => one.outerHTML.slice(0, 200));
  if (document.scripts.length !== 2) found.push('scripts');
  if (document.styleSheets.length !== 1) found.push('style sheets');
  if (window.hacked) found.push('hacked');
  return found;
})()"""


def filled(value: Any, text: Callable[[], str]) -> Any:
    """Plain data with every text replaced; what only says of which kind something is stays."""
    if isinstance(value, dict):
        return {
            key: item if key in ("unit", "role", "per", "about") else filled(item, text) for key, item in value.items()
        }
    if isinstance(value, list):
        return [filled(item, text) for item in value]
    return text() if isinstance(value, str) else value


def test_there_are_a_hundred_hostile_inputs(hostile: list[str]) -> None:
    assert len(set(hostile)) >= 100


def test_hostile_names_in_a_trace_are_shown_as_they_are_and_do_nothing(
    tmp_path: Path, hostile: list[str], opened: Callable[..., Any]
) -> None:
    events: list[dict[str, Any]] = []
    for i, name in enumerate(hostile):
        at = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**at, "cat": "user_annotation", "name": name, "ts": 1000 * i, "dur": 900},
            {**at, "cat": "cpu_op", "name": name, "ts": 1000 * i + 10, "dur": 700},
            {**at, "cat": "cuda_runtime", "name": name, "ts": 1000 * i + 20, "dur": 20, "args": {"correlation": i + 1}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1000 * i + 50, "dur": 400,
             "args": {"device": 0, "stream": 7, "correlation": i + 1}},
        ]  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    data = figures_of(diagnose(tmp_path / "trace.json"))
    page = opened(write_html(data, tmp_path / "page.html")).page

    assert data.timeline is not None
    assert {clean(name) for name in hostile} <= set(data.timeline.names)
    assert page.evaluate(INTRUDERS) == []
    timeline = page.locator(".timeline svg")
    timeline.scroll_into_view_if_needed()
    box = timeline.bounding_box()
    assert box is not None
    for part in range(40):  # what a click and a pointer tell is made of the names too
        page.mouse.click(box["x"] + 180 + (box["width"] - 190) * part / 40, box["y"] + 60 + 18 * (part % 4))
    assert page.evaluate(INTRUDERS) == []


@pytest.mark.parametrize("part", range(4))
def test_hostile_text_in_every_field_is_shown_as_it_is_and_does_nothing(
    tmp_path: Path, run: Path, hostile: list[str], opened: Callable[..., Any], part: int
) -> None:
    mine = hostile[part::4]
    finding = Finding(
        rule="x",
        severity="critical",
        message="m",
        advice="a",
        confidence="high",
        spent=Location(file=__file__, line=3, function="f"),
        cost_ns=5,
        evidence=(Evidence("n", "v", "u", "s"),),
    )
    answer = msgspec.structs.replace(
        Diagnosis.from_json((run / "diagnosis.json").read_bytes()), findings=(finding,) * 10, missing=mine
    )
    texts = iter(mine * 500)
    data = msgspec.convert(
        filled(msgspec.to_builtins(figures_of(answer, run), builtin_types=(bytes,)), lambda: next(texts)), FigureData
    )

    page = opened(write_html(data, tmp_path / "page.html")).page

    assert page.evaluate(INTRUDERS) == []
    told = page.locator("section[data-section=missing] li").evaluate_all("all => all.map(one => one.textContent)")
    assert [text.replace("\r\n", "\n").replace("\r", "\n") for text in told] == [
        text.replace("\r\n", "\n").replace("\r", "\n") for text in data.missing
    ]
    page.evaluate(
        "document.querySelectorAll('button, g[role=button]').forEach(one => one.dispatchEvent(new Event('click')))"
    )
    assert page.evaluate(INTRUDERS) == []


def test_the_page_stays_one_block_whatever_its_texts_are(run: Path, hostile: list[str]) -> None:
    data = msgspec.structs.replace(read_figures(run), verdict="".join(hostile), source="".join(hostile))

    text = render_html(data)

    assert text.count("<script") == text.count("</script>") == 2
    assert "example.com" in text
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert "unsafe" not in text.split("</head>")[0]
