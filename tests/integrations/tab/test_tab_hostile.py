"""Names, paths and texts that want to act or to get out: none gets through the tab."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from perfkit.diagnosis import SCHEMA

#: Names of runs and traces, as somebody may ask for them, that lead out of the log directory, or nowhere.
PATHS = [
    "..", "../", "../outside", "../outside/secret.pt.trace.json", "../../../../../../../../etc/passwd", "/etc/passwd",
    "link", "link/secret.pt.trace.json", "before/../../outside", "before/..", "./before", "before/", "before//",
    "//before", "before/link.pt.trace.json", "link.pt.trace.json", "rank-0/link.pt.trace.json",
    "before\0", "before\0.pt.trace.json", "..\\outside", "..\\..\\outside", "%2e%2e/outside", "..%2foutside",
    "%252e%252e%252foutside", "..%c0%afoutside", "....//outside", "..;/outside", "file:///etc/passwd", "memory://x",
    "http://127.0.0.1/", "C:\\Windows\\win.ini", "\\\\host\\share", "~", "~root", "$HOME", "`id`", "$(id)", "before;id",
    "before|id", "--help", "-", "before\n", "\uffff", "a" * 20_000, "'", "\"", "*", "?", "[a-z]*", "before*",
    "{before,after}", "run.json", "before/run.json", "rank-0/rank.json", "diagnosis.json", "tb", "events.out.tfevents",
    "None", "null", "0",
]  # fmt: skip


def test_no_hostile_name_gets_anything(url: str, hostile: list[str], get: Callable[..., Any]) -> None:
    asked = [
        f"/data/plugin/perfkit/{route}?{query}"
        for text in (*PATHS, *hostile)
        for name in [quote(text, safe="")]
        for route, query in (
            ("figures", f"run={name}"),
            ("figures", f"run=before&trace={name}"),
            ("trace", f"run={name}&trace={name}"),
            ("trace", f"run=before&trace={name}"),
        )
    ]
    assert len(set(asked)) > 600

    for path in asked:
        status, body, headers = get(url, path)
        assert 400 <= status < 500, path
        assert b"the text of a file outside" not in body, path
        assert b"root:" not in body, path
        assert "html" not in headers.get("content-type", ""), path


@pytest.mark.parametrize(
    "path",
    [
        "..", "../", "../../../../../../etc/passwd", "%2e%2e/%2e%2e/%2e%2e/etc/passwd", "..%2f..%2f..%2fetc%2fpasswd",
        "static/index.js", "tab.py", "index.js/../tab.py", "index.js%00.py", "//etc/passwd", "\\..\\tab.py",
        "index.js/",
        "perfkit.js.map", "INDEX.JS", "runs/..", "trace/../../../etc/passwd", "trace/before/run.json", "figures/",
        ".", "static/..%5c..%5ctab.py", "page.html", "~root", "?../tab.py", "#x", "%", "%zz",
    ],
)  # fmt: skip
def test_no_hostile_route_is_answered(url: str, path: str, get: Callable[..., Any]) -> None:
    status, body, _ = get(url, f"/data/plugin/perfkit/{path}")

    assert status >= 400 or b"TensorBoard" in body  # TensorBoard's own start page
    assert b"class Tab" not in body
    assert b"root:" not in body


def names_of(texts: list[str]) -> list[str]:
    """Those that a file system takes as a name, and that the tab does not leave out as hidden."""
    names = (text.replace("/", "").replace("\0", "") for text in texts)
    return sorted({name for name in names if name and name[0] != "." and len(name.encode()) < 200})


def hostile_logs(folder: Path, texts: list[str]) -> Path:
    """Runs and traces with hostile names, and a diagnosis and a trace full of hostile texts."""
    names = names_of(texts)
    for name in names:
        made = folder / name
        made.mkdir(parents=True)
        (made / f"{name}.pt.trace.json").write_text("{}")
    finding = {"severity": "warning", "confidence": "high", "cost_ns": 5_000}
    spent = [{"file": text, "line": 1, "function": text} for text in texts]
    findings = [
        {**finding, "rule": text, "message": text, "advice": text, "spent": at, "range": text}
        for text, at in zip(texts, spent, strict=True)
    ]
    ops = [{"name": text, "count": 1, "total_ns": 5, "self_ns": 5} for text in texts]
    ranges = [{"name": text, "count": 1, "host_ns": 5, "source": text} for text in texts]
    diagnosis = {
        "schema": SCHEMA, "source": texts[0], "verdict": " ".join(texts), "findings": findings, "missing": texts,
        "figures": {"wall_ns": 1_000_000, "ops": ops, "ranges": ranges},
    }  # fmt: skip
    (folder / "0-diagnosis").mkdir()
    (folder / "0-diagnosis" / "diagnosis.json").write_text(json.dumps(diagnosis))
    event = {"ph": "X", "pid": 1, "tid": 1, "dur": 5}
    events = [
        {**event, "cat": "cpu_op", "name": text, "ts": 10 * i, "args": {"x": text}} for i, text in enumerate(texts)
    ]
    events.append({**event, "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": 10 * len(texts)})
    trace = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}
    (folder / "1-trace").mkdir()
    (folder / "1-trace" / "x.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder


@pytest.mark.slow
def test_no_hostile_text_becomes_anything_but_text(
    tmp_path: Path, hostile: list[str], open_tab: Callable[[str], Any], tensorboard: Callable[..., Any]
) -> None:
    assert len(names_of(hostile)) >= 100
    with tensorboard(hostile_logs(tmp_path / "logs", hostile), tmp_path / "tb") as url:
        tab = open_tab(url)
        tab.drawn()
        tab.look("hostile-diagnosis")
        tab.choose("1-trace")
        tab.drawn(2)
        tab.choose("0-diagnosis")
        tab.drawn()
        tab.look("hostile-trace")
        assert "<script>window.hacked=1</script>" in tab.frame.inner_text("main")
        tab.choose("0-diagnosis")
        tab.drawn(2)

        assert tab.frame.locator(".runs li").count() == len(names_of(hostile)) + 2
        assert [page.evaluate("window.hacked") for page in (tab.page, tab.frame)] == [None, None]
        made = tab.frame.evaluate("[...document.querySelectorAll('*')].map((one) => one.localName)")
        assert not set(made) & {"iframe", "object", "embed", "img", "form", "meta", "math", "video", "style", "use"}
        assert (made.count("script"), made.count("base"), made.count("link")) == (1, 1, 2)
        links = tab.frame.evaluate("[...document.links].map((one) => one.protocol)")
        assert set(links) <= {"http:"}
        attributes = tab.frame.evaluate("[...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())")
        assert not [name for name in attributes if name.startswith("on")]
        assert (tab.wrong, tab.foreign()) == ([], [])
