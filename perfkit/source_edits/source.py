"""A Python file that is edited: its text and its tree, so that what is written can be compared with what is meant."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_NEWLINE = re.compile(rb"\r\n|\r|\n")
_COMMENT_OR_NOTHING = re.compile(rb"\s*(#[^\r\n]*)?\s*")
_NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class CannotWriteError(Exception):
    """Why an edit cannot be made; its text continues ``train.py:12``."""


class NotAsPlannedError(Exception):
    """The edited file would not compile, or would differ in more than was planned."""


class Token(NamedTuple):
    """One token of code: offsets in bytes."""

    start: int
    end: int
    text: str


class Source:
    """The source of one file.

    The methods that edit record what to do, in positions of the file as it is; `edited` does it. All offsets count
    bytes of UTF-8, as those of `ast` do, whatever the file's own encoding.

    Raises:
        CannotWriteError: the file cannot be read, or is not Python.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.original = path.read_bytes()
            self._encoding = tokenize.detect_encoding(io.BytesIO(self.original).readline)[0]
            text = self.original.decode(self._encoding)
            self.tree = ast.parse(text)
            self.data = text.encode()
            self.starts = [0, *(match.end() for match in _NEWLINE.finditer(self.data))]
            self.tokens = [*self._read_tokens(text)]
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
            raise CannotWriteError(f"cannot be read: {error}") from None
        newline = _NEWLINE.search(self.data)
        self.newline = newline[0].decode() if newline else "\n"
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._wrapped: list[tuple[str, Sequence[ast.stmt]]] = []
        self._texts: list[tuple[int, int, str]] = []
        self._meant: list[Callable[[], None]] = []

    # -- positions

    def offset(self, line: int, column: int) -> int:
        """The offset of a position as `ast` has it."""
        return self.starts[line - 1] + column

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """Where a node begins; decorators are a part of what they decorate."""
        first = min([node, *getattr(node, "decorator_list", ())], key=lambda one: one.lineno)
        return self.offset(first.lineno, first.col_offset - (first is not node))  # the @ of a decorator

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """Where a node ends."""
        assert node.end_lineno is not None  # parsed nodes have both
        assert node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr) -> str:
        """The source of an expression."""
        return self.data[self.start(node) : self.end(node)].decode()

    def line_start(self, offset: int) -> int:
        """The beginning of the line."""
        return self.starts[bisect(self.starts, offset) - 1]

    def line_end(self, offset: int) -> int:
        """The beginning of the next line."""
        line = bisect(self.starts, offset)
        return self.starts[line] if line < len(self.starts) else len(self.data)

    def indentation(self, offset: int) -> str | None:
        """What is in front of an offset in its line; None if that is more than white space."""
        before = self.data[self.line_start(offset) : offset]
        return None if before.strip() else before.decode()

    def has_own_lines(self, first: ast.stmt, last: ast.stmt) -> bool:
        """Whether no other statement stands on the lines of these."""
        rest = self.data[self.end(last) : self.line_end(self.end(last))]
        return self.indentation(self.start(first)) is not None and bool(_COMMENT_OR_NOTHING.fullmatch(rest))

    @property
    def indent(self) -> str:
        """One level of indentation."""
        for node in self.tree.body:
            block = getattr(node, "body", None)
            if isinstance(block, list) and (found := self.indentation(self.start(block[0]))):
                return found
        return "    "

    # -- nodes

    def calls(self) -> Iterator[ast.Call]:
        """All calls."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is a part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def outwards(self, node: ast.AST) -> Iterator[ast.AST]:
        """What contains a node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which one stands."""
        for node in ast.walk(self.tree):
            for _, value in ast.iter_fields(node):
                if isinstance(value, list) and any(one is statement for one in value):
                    return value
        raise AssertionError("a statement stands in a block")

    # -- edits

    def replace(self, start: int, end: int, text: str) -> None:
        """Write other text between two offsets."""
        self._texts.append((start, end, text))

    def mean(self, change: Callable[[], None]) -> None:
        """What the recorded text does to the tree."""
        self._meant.append(change)

    def insert_before(self, statement: ast.stmt, code: str) -> None:
        """Write statements, each on a line of its own, in front of another one."""
        start = self.start(statement)
        indentation = self.indentation(start)
        if indentation is None:
            raise CannotWriteError("stands behind another statement on its line")
        lines = code.splitlines()
        at = self.line_start(start)
        text = "".join(f"{indentation}{line}{self.newline}" for line in lines)
        if (at, at, text) not in self._texts:  # a second place may need the same
            self.replace(at, at, text)
            self.mean(lambda: _insert(self.block(statement), statement, ast.parse(code).body))

    def replace_expression(self, node: ast.expr, code: str) -> None:
        """Write another expression for one."""
        self.replace(self.start(node), self.end(node), code)
        parent, new = self.parents[node], ast.parse(code, mode="eval").body
        self.mean(lambda: _put(parent, node, new))

    def wrap(self, statements: Sequence[ast.stmt], header: str) -> None:
        """Put consecutive statements into a ``with`` block."""
        first, last = statements[0], statements[-1]
        if any(header == other and first in inside for other, inside in self._wrapped):
            return  # another place in the same block
        if not self.has_own_lines(first, last):
            raise CannotWriteError("shares its line with another statement")
        self._wrapped.append((header, statements))
        begin = self.line_start(self.start(first))
        self.replace(begin, begin, f"{self.indentation(self.start(first))}{header}{self.newline}")
        inside_strings = {
            line
            for statement in statements
            for node in ast.walk(statement)
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno is not None
            for line in range(node.lineno + 1, node.end_lineno + 1)
        }
        for line, at in enumerate(self.starts, 1):
            if (
                begin <= at < self.end(last)
                and line not in inside_strings
                and self.data[at : self.line_end(at)].strip()
            ):
                self.replace(at, at, self.indent)
        self.mean(lambda: _enclose(self.block(first), statements, header))

    def remove(self, statement: ast.stmt) -> None:
        """Take a statement out: its lines, or ``pass`` for it where they hold or need something else."""
        if len(self.block(statement)) > 1 and self.has_own_lines(statement, statement):
            self.replace(self.line_start(self.start(statement)), self.line_end(self.end(statement)), "")
            self.mean(lambda: self.block(statement).remove(statement))
        else:
            self.replace(self.start(statement), self.end(statement), "pass")
            self.mean(lambda: _replace(self.block(statement), statement, ast.Pass()))

    def edited(self) -> bytes:
        """The file with all edits, in its encoding.

        Raises:
            NotAsPlannedError: it would not be what was meant. The tree is used up: read the file again.
        """
        pieces, done = [], 0
        for start, end, text in sorted(self._texts, key=lambda one: one[:2]):
            if start < done:
                raise NotAsPlannedError
            pieces += [self.data[done:start], text.encode()]
            done = end
        pieces.append(self.data[done:])
        try:
            text = b"".join(pieces).decode()
            for change in self._meant:
                change()
            compile(text, "edited", "exec", dont_inherit=True)
            if ast.dump(ast.parse(text)) != ast.dump(self.tree):
                raise NotAsPlannedError
            return text.encode(self._encoding)
        except (SyntaxError, ValueError) as error:
            raise NotAsPlannedError from error

    def _read_tokens(self, text: str) -> Iterator[Token]:
        # Like the parser, which counts lines by these three.
        lines = re.split("\r\n|\r|\n", text)
        for kind, code, (row, column), (last, end), _ in tokenize.generate_tokens(
            io.StringIO("\n".join(lines)).readline
        ):
            if kind not in _NOT_CODE:
                start = self.offset(row, len(lines[row - 1][:column].encode()))
                yield Token(start, self.offset(last, len(lines[last - 1][:end].encode())), code)


def _insert(block: list[ast.stmt], before: ast.stmt, new: list[ast.stmt]) -> None:
    at = block.index(before)
    block[at:at] = new


def _replace(block: list[ast.stmt], statement: ast.stmt, new: ast.stmt) -> None:
    block[block.index(statement)] = new


def _put(parent: ast.AST, node: ast.expr, new: ast.expr) -> None:
    """Put an expression where another one stands."""
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, new)
        elif isinstance(value, list) and node in value:
            value[value.index(node)] = new


def _enclose(block: list[ast.stmt], statements: Sequence[ast.stmt], header: str) -> None:
    at = block.index(statements[0])
    enclosing = ast.parse(f"{header} pass").body[0]
    assert isinstance(enclosing, ast.With)
    enclosing.body = block[at : at + len(statements)]
    block[at : at + len(statements)] = [enclosing]
