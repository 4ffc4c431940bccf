"""What the names of a file stand for, and which of its calls ran at a place."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from perfkit.run.records import ChangedLine
from perfkit.source_edits.source import CannotWriteError, Source


class Names:
    """The imports, classes and other names of one file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        #: Name -> what it stands for, as written: "DL" -> "torch.utils.data.DataLoader".
        self._stands_for: dict[str, str] = {}
        self._imported: set[str] = set()
        self._defined: set[str] = set()
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._defined.add(node.name)
                if isinstance(node, ast.ClassDef) and node.bases and (base := dotted(node.bases[0])):
                    self._stands_for.setdefault(node.name, base)
            elif (
                isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (other := dotted(node.value))
            ):
                self._stands_for.setdefault(node.targets[0].id, other)

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for one in node.names:
            name = one.asname or one.name.partition(".")[0]
            if isinstance(node, ast.ImportFrom):
                self._stands_for[name] = f"{node.module or ''}.{one.name}"
            elif one.asname:
                self._stands_for[name] = one.name
            else:
                self._stands_for.setdefault(name, name)
            self._imported.add(name)

    def meaning(self, function: ast.expr) -> str | None:
        """What is called, as far as the file says: "torch.utils.data.DataLoader" for ``DL``; None for no name."""
        name = dotted(function)
        for _ in range(8):  # a class of a class of an alias; no more than that, for names that stand for each other
            if name is None:
                return None
            first, dot, rest = name.partition(".")
            if (other := self._stands_for.get(first, first)) == first:
                break
            name = other + dot + rest
        return name

    def binds(self, name: str) -> bool:
        """Whether the module imports this name at its top level."""
        return any(
            name in ((one.asname or one.name.partition(".")[0]) for one in node.names)
            for node in self._source.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
        )

    def call_at(self, place: ChangedLine, names: Sequence[str]) -> ast.Call:
        """The call of one of these that ran at a place; of a class also where its name is not known.

        Raises:
            CannotWriteError: there is none.
        """
        ran = self._ran(place)
        if ran is not None:
            if self._is_called(ran, names) or (names[0][0].isupper() and not self._is_known(ran.func)):
                return ran
        else:
            named = [one for one in self._calls_on(place.line) if self._is_called(one, names)]
            begin = [one for one in named if place.line in (one.lineno, one.func.end_lineno)]
            if len(begin or named) == 1:
                return (begin or named)[0]
            if named:
                raise CannotWriteError(f"has several calls of {names[0]}")
        raise CannotWriteError(f"has no call of {names[0]}")

    def model_call(self, place: ChangedLine) -> ast.Call:
        """The call of a model that ran at a place.

        Raises:
            CannotWriteError: it cannot be told from other calls.
        """
        if (ran := self._ran(place)) is not None:
            return ran
        possible = [one for one in self._calls_on(place.line) if self._may_be_model(one)]
        if len(possible) != 1:
            raise CannotWriteError("has several calls, of which one is the model's")
        return possible[0]

    def _is_called(self, call: ast.Call, names: Sequence[str]) -> bool:
        return (self.meaning(call.func) or _last_name(call.func)).rpartition(".")[2] in names

    def _is_known(self, function: ast.expr) -> bool:
        """Whether a name is Python's or torch's own."""
        meaning = self.meaning(function)
        return meaning is not None and (meaning.startswith("torch.") or hasattr(builtins, meaning.partition(".")[0]))

    def _may_be_model(self, call: ast.Call) -> bool:
        first = (dotted(call.func) or "").partition(".")[0]
        taken = first in self._imported | self._defined or hasattr(builtins, first)
        return bool(first) and not taken and bool(call.args or call.keywords)

    def _calls_on(self, line: int) -> Iterator[ast.Call]:
        return (one for one in self._source.calls() if one.lineno <= line <= (one.end_lineno or one.lineno))

    def _ran(self, place: ChangedLine) -> ast.Call | None:
        """The call that ends where the running one ended."""
        if place.end is None:
            return None
        return next((one for one in self._source.calls() if (one.end_lineno, one.end_col_offset) == place.end), None)


def dotted(node: ast.AST) -> str | None:
    """``a.b.c`` as text; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _last_name(node: ast.AST) -> str:
    """``zero_grad`` of ``optimizers[0].zero_grad``."""
    return node.attr if isinstance(node, ast.Attribute) else ""
