"""What notebooks show of a diagnosis, a comparison and syncs: escaped, without a script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import perfkit
from perfkit._format import shown_location
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding

#: Tags that the three make; whatever else stands there came from outside.
OURS = {"svg", "rect", "title", "font", "p", "b", "i", "table", "thead", "tbody", "tr", "th", "td"}


def with_texts(diagnosis: Diagnosis, texts: list[str]) -> Diagnosis:
    findings = tuple(
        Finding(
            rule=text,
            severity="critical",
            message=text,
            advice=text,
            confidence="high",
            spent=Location(file=text, line=1),
            cost_ns=5,
        )
        for text in texts
    )
    return msgspec.structs.replace(
        diagnosis, verdict="".join(texts), source="".join(texts), missing=tuple(texts), findings=findings
    )


def syncs_with_texts(texts: list[str]) -> perfkit.detect_syncs:
    """What a dry run sees of files with such names."""
    model = torch.nn.Linear(1, 1)
    with perfkit.detect_syncs(device_of=[model]) as syncs:
        for text in texts:
            scope: dict[str, Any] = {}
            exec(compile("def read(x):\n    return x.sum().item()", text.replace("\0", ""), "exec"), scope)
            scope["read"](model.weight)
    return syncs


@pytest.mark.parametrize("of", ["diagnosis", "comparison", "syncs"])
def test_a_notebook_is_shown_hostile_texts_as_texts(diagnosis: Diagnosis, hostile: list[str], of: str) -> None:
    answer: Any = with_texts(diagnosis, hostile)
    if of == "comparison":
        answer = perfkit.compare(answer, diagnosis)
    elif of == "syncs":
        answer = syncs_with_texts(hostile)

    shown = answer._repr_html_()

    assert "<table>" in shown
    assert "window.hacked=1" in shown
    assert "&lt;img" in shown
    assert set(re.findall(r"<\s*/?([^\s>]*)", shown)) <= OURS
    assert not re.search(r"<[^>]*[\s/](?:on\w+|href|src|style)\s*=", shown.replace(' style="text-align: left"', ""))


def test_a_notebook_shows_the_step_and_what_accounts_for_it_as_pictures(accounted: Diagnosis) -> None:
    shown = accounted._repr_html_()

    bars = re.findall(r'<svg [^>]*aria-label="([^"]*)"', shown)
    assert bars[0].startswith("step: data 45.0 ms 56%, forward 20.0 ms 25%")
    assert bars[1].startswith("what accounts for it: at the limit 39%, claimed by findings 48%")
    # Nothing is asked of a network, and no text has a colour of its own that a dark page would hide.
    assert not re.search(r"https?:|url\(|<script|<img|<link", shown)
    assert set(re.findall(r'fill="(#\w+)"', shown)) <= set(re.findall(r'color="(#\w+)"', shown))


def test_a_place_in_a_notebook_is_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Location(file="/tmp/ipykernel_77/1234567.py", line=7)
    kernel = SimpleNamespace(compile=SimpleNamespace(_filename_map={"/tmp/ipykernel_77/1234567.py": 3}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))

    assert shown_location(cell) == "cell [3] line 7"
    assert shown_location(Location(file="<ipython-input-12-abc>", line=2)) == "cell [12] line 2"

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert shown_location(cell) == "/tmp/ipykernel_77/1234567.py:7"


def test_a_real_kernels_cells_are_numbered(tmp_path: Path) -> None:
    program = """
from IPython.core.interactiveshell import InteractiveShell
from ipykernel.compiler import XCachingCompiler
InteractiveShell.compiler_class = XCachingCompiler
shell = InteractiveShell.instance()
shell.run_cell("def work():\\n    return 1", store_history=True)
shell.run_cell("x = 1", store_history=True)
shell.run_cell("import perfkit._format as f, perfkit._location as l")
shell.run_cell("print(f.shown_location(l.Location(file=work.__code__.co_filename, line=2)))")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.stdout == "cell [1] line 2\n", done.stderr


def test_a_profile_shows_its_diagnosis(diagnosis: Diagnosis, tmp_path: Path) -> None:
    prof = perfkit.profile(tmp_path / "run")
    assert prof._repr_html_().startswith("<p>&lt;perfkit.profile")

    prof.diagnosis = diagnosis

    assert prof._repr_html_().endswith(diagnosis._repr_html_())
