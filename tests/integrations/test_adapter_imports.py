"""What an adapter may import: its framework, perfkit's public names, and what is listed here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = sorted((ROOT / "integrations").rglob("*.py"))
#: For every adapter: the one way to patch and undo.
ALLOWED = {"perfkit", "perfkit._patches"}
#: These are reports as well: they read run folders, and draw and format as perfkit.reports does.
REPORTS = ("tensorboard", "trackers")
ALLOWED_IN_REPORTS = {
    "perfkit._background",
    "perfkit._env",
    "perfkit._format",
    "perfkit.ledger.ledger_text",
    "perfkit.measures.steps.utilization",
    "perfkit.reports",
    "perfkit.reports.figures",
    "perfkit._regular_file",
    "perfkit._text",
    "perfkit._versioned_json",
    "perfkit.run.new_rows",
    "perfkit.run.reading",
    "perfkit.run.records",
    "perfkit.run.remote",
}


@pytest.mark.parametrize("file", ADAPTERS, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_adapter_imports_public_names_and_what_is_listed_here(file: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            private = {f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")}
            imported |= private if node.module == "perfkit" and private else {node.module or ""}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    allowed = ALLOWED | (ALLOWED_IN_REPORTS if file.parent.name in REPORTS or file.stem in REPORTS else set())

    of_perfkit = {name for name in imported if name.split(".")[0] == "perfkit"}
    assert {name for name in of_perfkit if not name.startswith("perfkit.integrations")} <= allowed
