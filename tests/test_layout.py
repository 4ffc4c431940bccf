"""The shape of the package: what CONTRIBUTING promises about files, functions, imports and names."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    file
    for folder in ("perfkit", "integrations")
    for file in (ROOT / folder).rglob("*.py")
    if not file.is_relative_to(ROOT / "perfkit" / "integrations")
)

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
#: Signatures that users write, as options of a command or arguments of a function: as long as what they offer.
PUBLIC_SIGNATURES = {"profile.__init__", "detect_syncs"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{owner}{node.name}" if isinstance(node, Function | ast.ClassDef) else owner
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, f"{name}." if isinstance(node, Function | ast.ClassDef) else owner)


def code_length(function: Function) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def parameters(function: Function) -> int:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return len(named) - bool(named and named[0].arg in ("self", "cls")) + bool(given.vararg) + bool(given.kwarg)


def comment_lines(text: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0] for token in tokens if token.type == tokenize.COMMENT}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_answers_one_question_with_functions_that_fit_a_screen(file: Path) -> None:
    text = file.read_text()
    found = [f"{MAX_FILE_LINES} lines"] if len(text.splitlines()) > MAX_FILE_LINES else []
    is_command = file.parent == ROOT / "perfkit" / "commands"
    for name, function in functions(ast.parse(text)):
        if code_length(function) > MAX_FUNCTION_LINES and not (is_command and name == file.stem):
            found.append(f"{name}: {code_length(function)} lines")
        public = name in PUBLIC_SIGNATURES or (is_command and name == file.stem)
        if parameters(function) > MAX_PARAMETERS and not public:
            found.append(f"{name}: {parameters(function)} parameters")

    assert found == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_import_inside_a_function_has_its_reason_next_to_it(file: Path) -> None:
    text = file.read_text()
    comments = comment_lines(text)
    without = []
    for name, function in functions(ast.parse(text)):
        reason = 0
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                last = node.end_lineno or node.lineno
                if comments & set(range(node.lineno - 1, last + 1)) or node.lineno - 1 == reason:
                    reason = last  # imports one below the other share it
                else:
                    without.append(f"{name}, line {node.lineno}")

    assert without == []


def test_no_two_classes_have_the_same_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    # Each framework's callback is named as that framework's users expect.
    del places["ProfilerCallback"]

    assert {name: where for name, where in places.items() if len(where) > 1} == {}
