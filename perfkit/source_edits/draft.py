"""What all changes want of one file."""

from __future__ import annotations

import ast
from pathlib import Path

from perfkit.source_edits.calls import CallArguments
from perfkit.source_edits.names import Names
from perfkit.source_edits.source import CannotWriteError, Source

#: Modules that what is written may use.
_MODULES = ("gc", "torch")


class Draft:
    """One file, and its edits so far.

    Raises:
        CannotWriteError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.source = Source(path)
        self.names = Names(self.source)
        self._arguments: dict[ast.Call, CallArguments] = {}
        #: For the top of the module, behind its imports.
        self._imports: dict[str, None] = {}
        self._first: dict[str, None] = {}

    def arguments(self, call: ast.Call) -> CallArguments:
        """The arguments of a call."""
        if call not in self._arguments:
            self._arguments[call] = CallArguments(self.source, call)
        return self._arguments[call]

    def add_first(self, code: str) -> None:
        """Write a statement that runs first, behind the imports at the top."""
        self.need_modules(code)
        self._first[code] = None

    def need_modules(self, code: str) -> None:
        """Import the modules that a piece of code uses, where the file does not."""
        used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
        for name in _MODULES:
            if name in used and not self.names.binds(name):
                self._imports[f"import {name}"] = None

    def write(self) -> bytes:
        """The edited file.

        Raises:
            NotAsPlannedError: see `Source.edited`.
            CannotWriteError: the file has no place for a first statement.
        """
        for arguments in self._arguments.values():
            arguments.write()
        begin = _prologue(self.source.tree)
        end = _imports_end(self.source.tree, begin)
        self._insert([*self._imports], begin, end)
        self._insert([*self._first], begin, end)
        return self.source.edited()

    def _insert(self, statements: list[str], begin: int, end: int) -> None:
        """Insert at the last index between these that begins a line."""
        if not statements:
            return
        source, body = self.source, self.source.tree.body
        index, at = self._line_between(begin, end)
        lines = "".join(f"{one}{source.newline}" for one in statements)
        if source.line_start(at) != at:  # behind the last line, which has no end
            lines = source.newline + lines
        if index and isinstance(body[index - 1], ast.Import | ast.ImportFrom) and "import" not in statements[0]:
            lines = source.newline + lines
        source.replace(at, at, lines)
        where = body[index] if index < len(body) else None
        source.mean(lambda: _insert_at(source, where, ast.parse("\n".join(statements)).body))

    def _line_between(self, begin: int, end: int) -> tuple[int, int]:
        source, body = self.source, self.source.tree.body
        for index in range(end, begin - 1, -1):
            before = source.end(body[index - 1]) if index else -1
            if index == len(body):
                return index, len(source.data)
            if source.line_start(source.start(body[index])) > before:
                return index, source.line_end(before) if index else source.start(body[index])
        raise CannotWriteError("has no line for a statement at its beginning")


def _insert_at(source: Source, where: ast.stmt | None, new: list[ast.stmt]) -> None:
    body = source.tree.body
    at = len(body) if where is None else next(i for i, one in enumerate(body) if where in ast.walk(one))
    body[at:at] = new


def _prologue(tree: ast.Module) -> int:
    """How many statements nothing may stand in front of: the docstring, and ``from __future__``."""
    count = int(ast.get_docstring(tree, clean=False) is not None)
    while count < len(tree.body):
        one = tree.body[count]
        if not (isinstance(one, ast.ImportFrom) and one.module == "__future__"):
            break
        count += 1
    return count


def _imports_end(tree: ast.Module, begin: int) -> int:
    while begin < len(tree.body) and isinstance(tree.body[begin], ast.Import | ast.ImportFrom):
        begin += 1
    return begin
