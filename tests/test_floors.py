"""The floor table of the package: data flows one way, and a module imports only from floors below its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "perfkit"

FLOORS = {
    # The ground: whatever floor, anything may raise.
    "errors": -1,
    "_version": -1,
    "_stderr": -1,
    "_background": 0,
    "_env": 0,
    "_clock": 0,
    "_code_owner": 0,
    "_import_hook": 0,
    "_html": 0,
    "_text": 0,
    "_format": 0,
    "_location": 0,
    "_patches": 0,
    "_callsite": 1,
    "findings": 1,
    "which": 1,
    "run": 1,
    "trace": 1,
    "ranges": 2,
    "syncs": 2,
    "measures": 2,
    "record": 4,
    "rules": 3,
    "diagnosis": 4,
    "comparison": 5,
    "latency": 5,
    "reports": 6,
    "profiler": 7,
    "nsight_runner": 7,
    "commands": 8,
    "pytest_plugin": 8,
    "__init__": 9,
    "__main__": 9,
}

#: The offline column: works where torch cannot be imported.
OFFLINE = ("findings", "which", "run", "trace", "measures", "rules", "diagnosis", "comparison", "reports")


def modules(package: Path) -> Iterator[tuple[str, Path]]:
    """Each module with the room (top-level name) it belongs to; scripts that users get and adapters stand outside."""
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        if parts[0] not in ("integrations", "demo"):
            yield parts[0], file


def imported_rooms(file: Path) -> Iterator[tuple[int, str]]:
    """(line, room) of each import of perfkit in a file, also inside functions, not under TYPE_CHECKING."""
    tree = ast.parse(file.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "perfkit":
            parts = node.module.split(".")
            if len(parts) > 1:
                yield node.lineno, parts[1]
            else:
                for alias in node.names:
                    yield node.lineno, alias.name if alias.name in FLOORS else "__init__"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "perfkit":
                    yield node.lineno, parts[1] if len(parts) > 1 else "__init__"


def violations(package: Path) -> list[str]:
    found = []
    for room, file in modules(package):
        for line, target in imported_rooms(file):
            if target != room and FLOORS[target] >= FLOORS[room]:
                found.append(f"{file.relative_to(package)}:{line} ({room}) imports {target}")
    return found


def test_every_module_has_a_floor() -> None:
    assert {room for room, _ in modules(PACKAGE)} <= set(FLOORS)


def test_modules_import_only_from_floors_below_their_own() -> None:
    assert violations(PACKAGE) == []


def test_the_floor_check_sees_an_import_upwards_even_inside_a_function(tmp_path: Path) -> None:
    (tmp_path / "measures").mkdir()
    (tmp_path / "measures" / "idle.py").write_text("def f():\n    from perfkit.rules import RULES\n    return RULES\n")

    assert violations(tmp_path) == ["measures/idle.py:2 (measures) imports rules"]


@pytest.mark.parametrize("room", OFFLINE)
def test_the_offline_column_never_imports_torch(room: str) -> None:
    for owner, file in modules(PACKAGE):
        if owner != room:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not [name for name in names if name.split(".")[0] == "torch"], file
