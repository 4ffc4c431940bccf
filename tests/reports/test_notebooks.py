"""What notebooks show of a diagnosis, a comparison and syncs: escaped, without a script."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import torch

import perfkit
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding

#: Tags that the three make; whatever else stands there came from outside.
OURS = {"p", "b", "i", "table", "thead", "tbody", "tr", "th", "td"}


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
