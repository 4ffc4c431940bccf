"""The loops around lines of a source file."""

from __future__ import annotations

import ast

from perfkit.record.samplers.source_lookup import parsed


def loop_around(file: str, *lines: int) -> int:
    """The line of the innermost loop statement that contains all these lines; 0 for none."""
    loops = (node for node in ast.walk(parsed(file)) if isinstance(node, ast.For | ast.While | ast.AsyncFor))
    around = (loop.lineno for loop in loops if all(loop.lineno <= line <= (loop.end_lineno or 0) for line in lines))
    return max(around, default=0)


def innermost_loops(file: str) -> dict[int, int]:
    """Line -> line of the innermost ``for``, ``while`` or comprehension around it; {} where there is no source."""
    found: dict[int, int] = {}
    # ast.walk goes outside in, so an inner loop overwrites its lines.
    for node in ast.walk(parsed(file)):
        if isinstance(
            node, ast.For | ast.While | ast.AsyncFor | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        ):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            # A function defined inside a loop runs its lines elsewhere.
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found.pop(line, None)
    return found
