"""The public names are a promise: adding or removing one changes this list. Type checkers see the same names."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import perfkit


def test_the_public_names_are_these() -> None:
    assert sorted(perfkit.__all__) == [
        "Comparison",
        "Diagnosis",
        "Evidence",
        "Finding",
        "MissingDependency",
        "PerfkitError",
        "PerfkitWarning",
        "Phase",
        "RunError",
        "SyncBudgetExceeded",
        "SyncError",
        "TraceError",
        "Trial",
        "UsageError",
        "WhatIf",
        "__version__",
        "allow_sync",
        "annotate_modules",
        "changes",
        "compare",
        "detect_syncs",
        "diagnose",
        "diagnose_ranks",
        "mark",
        "measure_latency",
        "profile",
        "range",
        "schedule",
        "step",
        "steps",
        "trace_handler",
        "triggers",
        "try_changes",
        "what_if",
    ]


def test_every_public_name_can_be_had_and_is_documented() -> None:
    for name in perfkit.__all__:
        if name not in ("__version__", "Phase"):  # a string, and a type made of strings
            assert getattr(perfkit, name).__doc__, name


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(perfkit, "profiel")


def test_the_stub_exports_every_public_name_from_where_it_is_defined() -> None:
    # A strict type checker takes only "import X as X" for an export.
    stub = ast.parse((Path(perfkit.__file__).parent / "__init__.pyi").read_text())
    exported = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert sorted(exported) == sorted({*perfkit.__all__} - {"__version__"})
    for name, module in exported.items():
        assert getattr(perfkit, name) is getattr(importlib.import_module(str(module)), name)
