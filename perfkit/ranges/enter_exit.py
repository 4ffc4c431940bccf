"""The generator of the code that runs where a range begins and ends.

Each listener gives its statements as format strings (`RangeListener.code`). This module puts those of the listeners
that are on into the three places where ranges run:

- `with_functions`: ``__enter__`` and ``__exit__`` of one range, with everything they use in closure cells;
- `begin_function`: one call that begins a range and returns what ends it, for ``async with`` and for callers that are
  not generated;
- `statements`: the lines in the trampoline of a decorated function (`trampoline`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from perfkit.ranges import dynamo, listener_calls, listeners
from perfkit.ranges.listeners import Form

if TYPE_CHECKING:
    from perfkit.ranges.range_objects import Range

_with_binders: dict[tuple[int, Form], Callable[..., Callable[..., tuple[Any, Any]]]] = {}
_begin_functions: dict[tuple[int, Form], Callable[[Range], Callable[[], None]]] = {}

#: Expressions for what a listener's code may use, where a function has these as variables.
_VARIABLES = {name: name for name in ("number", "inverse", "name", "attributes", "handle")}


def statements(
    mode: int, form: Form, names: dict[str, str], *, calls: str = "", kept: str = "kept", suffix: str = ""
) -> tuple[list[str], list[str]]:
    """The lines that begin and end a range.

    Args:
        mode: the bits of the listeners.
        form: what the code can keep between begin and end.
        names: placeholder -> expression, for ``number``, ``inverse``, ``name``, ``attributes`` and ``handle``.
        calls: prefix of each name of `listener_calls`.
        kept: prefix of the local variables, in which the bit of the listener follows.
        suffix: end of the local variables.
    """
    begins: list[str] = []
    ends: list[str] = []
    for bit, listener in sorted(listeners.by_bit.items(), reverse=True):
        if mode & bit:
            given = {name: calls + name for name in listener.calls} | names | {"kept": f"{kept}{bit}{suffix}"}
            begin, end = (text.format_map(given).splitlines() for text in listener.code(form, mode))
            begins += begin
            ends[:0] = end
    return begins, ends


def with_functions(mode: int, form: Form) -> Callable[..., tuple[Any, Any]]:
    """The function that makes (enter, exit) of a range from the range, its NVTX attributes and its domain's handle.

    The calls are bound when the pair is made. A listener that is connected to other functions therefore needs
    `listeners.refresh`.
    """
    active = [listener for bit, listener in listeners.by_bit.items() if mode & bit]
    calls = [name for listener in active for name in listener.calls]
    if (mode, form) not in _with_binders:
        begins, ends = statements(mode, form, _VARIABLES)
        text = (
            f"def bind({', '.join(calls)}):\n"
            "  def make(self, attributes, handle):\n"
            "    number, inverse, name = self.number, ~self.number, self.name\n"
            f"    def enter({'self' if form == 'payload' else '_=None'}):\n"
            f"{_indented(begins, 6)}"
            "      return self\n"
            "    def leave(a, b, c, d=None):\n"
            f"{_indented(ends, 6)}"
            "      return None\n"
            "    return enter, leave\n"
            "  return make\n"
        )
        _with_binders[mode, form] = _define(text, "bind")
    return _with_binders[mode, form](*(getattr(listener_calls, name) for name in calls))


def begin_function(mode: int, form: Form) -> Callable[[Range], Callable[[], None]]:
    """A function that begins the range it is given, and returns the function that ends this entry."""
    found = _begin_functions.get((mode, form))
    if found is None:
        begins, ends = statements(mode, form, _VARIABLES, calls="listener_calls.")
        text = (
            "def begin(range):\n"
            "  number, inverse, name = range.number, ~range.number, range.name\n"
            "  attributes, handle = range.nvtx_attributes()\n"
            f"{_indented(begins, 2)}"
            "  def end():\n"
            f"{_indented(ends, 4)}"
            "    return None\n"
            "  return end\n"
        )
        found = _begin_functions[mode, form] = _define(text, "begin")
    return found


def _indented(lines: list[str], width: int) -> str:
    return textwrap.indent("".join(f"{line}\n" for line in lines), " " * width)


def _define(text: str, name: str) -> Any:
    space: dict[str, Any] = {"listener_calls": listener_calls}
    exec(compile(text, "<perfkit range>", "exec", dont_inherit=True), space)
    dynamo.leave_alone(*_codes_within(space[name].__code__))
    return space[name]


def _codes_within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_within(constant)
