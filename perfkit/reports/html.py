"""A diagnosis as one HTML file that needs no other file and makes no request.

The page contains the figures as JSON, which the script of `page/` draws. Its policy allows that script and its styles
by their hashes, and nothing else: no request, no other script, no markup made of text.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from html import escape
from pathlib import Path

from perfkit._format import ms
from perfkit.reports import page
from perfkit.reports.figures import FigureData
from perfkit.run.atomic import write_atomically

__all__ = ["render_html", "write_html"]


def write_html(data: FigureData, file: str | os.PathLike[str]) -> Path:
    """Write the page to ``file``, completely or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(file)
    write_atomically(path, render_html(data).encode())
    return path


def render_html(data: FigureData) -> str:
    """The page as text."""
    script = page.script()
    style = page.read("perfkit.css") + page.read("page.css")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    title = escape(f"{data.title} - perfkit")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body class="page perfkit">
<a class="skip" href="#perfkit-root">To the report</a>
<header id="perfkit-bar"><span class="name">perfkit</span><h1>{escape(data.source)}</h1></header>
<main id="perfkit-root">
{"".join(_without_script(data))}
</main>
<script type="application/json" id="perfkit-data">{_json(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: FigureData) -> str:
    """JSON without ``<``, so that it cannot end its script block or begin a comment."""
    return data.to_json().decode().replace("<", "\\u003c")


def _without_script(data: FigureData) -> Iterator[str]:
    """What the page shows if its script does not run: the verdict, the parts, the findings, what was tried."""
    yield f"<p>{escape(data.verdict)}</p>\n"
    for bar in data.bars:
        parts = "".join(f"<li>{escape(part.name)} {ms(part.ns)}</li>" for part in bar.parts)
        yield f"<h2>{escape(bar.title)} {ms(bar.total_ns)}</h2><ul>{parts}</ul>\n"
    if data.ledger is not None:
        yield f"<p>{escape(data.ledger.summary)}</p>\n"
    for found in data.findings:
        yield f"<h2>{escape(found.rule)} {escape(found.place)}</h2>"
        change = f"Change {found.change}: " if found.change else ""
        yield f"<p>{escape(found.message)}</p><p>{escape(change + found.advice)}</p>\n"
    for measured in (data.trial, data.sweep):
        if measured is not None:
            yield f"<h2>What was tried</h2><p>{escape(measured.verdict)}</p>\n"
    yield "".join(f"<p>Missing: {escape(sentence)}</p>\n" for sentence in data.missing)
