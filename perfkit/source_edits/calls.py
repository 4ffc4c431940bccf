"""The arguments of a call, written so that its layout and comments stay."""

from __future__ import annotations

import ast
from bisect import bisect_left
from typing import NamedTuple

from perfkit.source_edits.source import CannotWriteError, Source, Token

_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


class _Written(NamedTuple):
    """One argument as it stands: offsets in bytes; ``comma`` is the end of its comma, None where it has none."""

    node: ast.expr | ast.keyword
    start: int
    end: int
    comma: int | None


class CallArguments:
    """What the arguments of one call are to be, of all changes together."""

    def __init__(self, source: Source, call: ast.Call) -> None:
        self._source, self._call = source, call
        self._written = self._read()
        self._values: dict[str, str | None] = {}
        self._positional: dict[int, str] = {}

    def want(self, name: str, value: str | None, position: int | None = None) -> None:
        """Give an argument a value, or take it out where the value is None.

        ``position`` is its index where it may also be given without its name.

        Raises:
            CannotWriteError: the call hides its arguments.
        """
        if not any(one.arg == name for one in self._call.keywords):
            before = self._call.args[: None if position is None else position + 1]
            if position is not None and any(isinstance(one, ast.Starred) for one in before):
                raise CannotWriteError("builds its arguments in *args")
            if position is not None and len(before) > position:
                if value is not None:
                    self._positional[position] = value
                return
            if value is None:
                return
            hidden = next((one for one in self._call.keywords if one.arg is None), None)
            if hidden is not None:
                raise CannotWriteError(f"builds its arguments in **{self._source.text(hidden.value)}")
        self._values[name] = value

    def write(self) -> None:
        """Record the edits."""
        source, call = self._source, self._call
        names = {one.node.arg: one for one in self._written if isinstance(one.node, ast.keyword)}
        removed = [names[name] for name, value in self._values.items() if value is None]
        added = [f"{name}={value}" for name, value in self._values.items() if value is not None and name not in names]
        kept: dict[ast.expr | ast.keyword, str | None] = {one.node: None for one in removed[len(added) :]}
        for name, one in names.items():
            if (value := self._values.get(name or "")) is not None:
                kept[one.node] = f"{name}={value}"
                self._replace_value(one, value)
        for one, text in zip(removed, added, strict=False):
            kept[one.node] = text
            source.replace(one.start, one.end, text)
        self._remove(removed[len(added) :])
        rest = added[len(removed) :]
        if rest:
            self._add(rest)
        for index, value in self._positional.items():
            source.replace(self._written[index].start, self._written[index].end, value)

        def mean() -> None:
            for index, value in self._positional.items():
                call.args[index] = ast.parse(value, mode="eval").body
            keywords = [(one, kept.get(one, "")) for one in call.keywords]
            call.keywords = [_keyword(text) if text else one for one, text in keywords if text is not None]
            call.keywords += map(_keyword, rest)

        source.mean(mean)

    def _read(self) -> list[_Written]:
        """The arguments in their order in the source, between the parentheses and commas of the call."""
        source, nodes = self._source, self._nodes()
        tokens = source.tokens
        first = bisect_left(tokens, source.end(self._call.func), key=lambda one: one.start)
        while tokens[first].text != "(":
            first += 1
        self._open = tokens[first]
        depth = 0
        parts: list[tuple[list[Token], int | None]] = []
        part: list[Token] = []
        for token in tokens[first:]:
            depth += _DEPTH.get(token.text, 0)
            if depth == 0:
                self._close = token
                break
            inside = any(source.start(node) <= token.start < source.end(node) for node in nodes)  # of a lambda
            if depth == 1 and token.text == "," and not inside:
                parts.append((part, token.end))
                part = []
            elif token is not self._open:
                part.append(token)
        if part:
            parts.append((part, None))
        if len(parts) != len(nodes):
            raise CannotWriteError("has arguments that cannot be told apart")
        return [
            _Written(node, part[0].start, part[-1].end, comma) for node, (part, comma) in zip(nodes, parts, strict=True)
        ]

    def _nodes(self) -> list[ast.expr | ast.keyword]:
        nodes: list[ast.expr | ast.keyword] = [*self._call.args, *self._call.keywords]
        return sorted(nodes, key=lambda one: (one.lineno, one.col_offset))

    def _replace_value(self, one: _Written, value: str) -> None:
        equals = next(token for token in self._source.tokens if token.text == "=" and token.start >= one.start)
        space = self._source.data[equals.end : one.end]
        self._source.replace(equals.end + len(space) - len(space.lstrip()), one.end, value)

    def _remove(self, gone: list[_Written]) -> None:
        source, written = self._source, self._written
        gone = sorted(gone, key=lambda one: one.start)
        if gone and gone[-1] is written[-1] and gone[-1].comma is None and not self._has_own_lines(gone[-1]):
            # The comma in front of the last one goes with it, unless a comment lies between.
            first = len(written) - 1
            while first and written[first - 1] in gone:
                first -= 1
            begin = written[first - 1].end if first else written[0].start
            if b"#" in source.data[begin : written[first].start]:
                begin = written[first].start
            source.replace(begin, written[-1].end, "")
            gone = [one for one in gone if one.start < begin]
        for one in gone:
            end = one.comma or one.end
            rest = source.data[end : source.line_end(end)]
            if self._has_own_lines(one):
                source.replace(source.line_start(one.start), source.line_end(end), "")
            else:
                source.replace(one.start, end + len(rest) - len(rest.lstrip(b" ")), "")

    def _has_own_lines(self, one: _Written) -> bool:
        end = one.comma or one.end
        rest = self._source.data[end : self._source.line_end(end)].strip()
        return self._source.indentation(one.start) is not None and (not rest or rest.startswith(b"#"))

    def _add(self, added: list[str]) -> None:
        source, written = self._source, self._written
        if not written:
            source.replace(self._open.end, self._open.end, ", ".join(added))
            return
        last = written[-1]
        end = last.comma or last.end
        indentation = source.indentation(last.start)
        if indentation is not None and source.line_end(end) <= self._close.start:
            # One argument a line, and the parenthesis on the next: so are the new ones.
            if last.comma is None:
                source.replace(end, end, ",")
            lines = [f"{indentation}{one},{source.newline}" for one in added]
            if last.comma is None:
                lines[-1] = lines[-1].replace(f",{source.newline}", source.newline)
            source.replace(source.line_end(end), source.line_end(end), "".join(lines))
        else:
            text = ", ".join(added)
            source.replace(end, end, f" {text}," if last.comma is not None else f", {text}")


def _keyword(text: str) -> ast.keyword:
    name, _, value = text.partition("=")
    return ast.keyword(arg=name, value=ast.parse(value, mode="eval").body)
