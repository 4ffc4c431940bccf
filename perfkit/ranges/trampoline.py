"""The code that a decorated function runs while something listens: its trampoline.

With nothing listening a decorated function runs its own code, with no call and no test added. While something listens,
``function.__code__`` is a *trampoline*: code with the same signature that writes the begin, calls a clone of the
function, and writes the end in a ``finally``. For

    def forward(self, x, *, scale=1.0): ...

and the recorder it reads

    def forward(self, x, *, scale):
        __perfkit_function = __perfkit_7__.function
        try:
            __perfkit_kept1_0 = __perfkit__.tls.buffer
        except AttributeError:
            __perfkit_kept1_0 = __perfkit__.new_buffer()
        __perfkit_kept1_0.append(__perfkit_7__.number0)
        __perfkit_kept1_0.append(__perfkit__.clock())
        try:
            return __perfkit_function(self, x, scale=scale)
        finally:
            __perfkit_kept1_0.append(__perfkit_7__.inverse0)
            __perfkit_kept1_0.append(__perfkit__.clock())

Why it is right:

- A running frame keeps its code, so what began with a trampoline ends with it, whatever is switched. What must be kept
  between begin and end is in the frame's locals, so coroutines and generators need nothing more.
- Defaults stay on the function object and bind as always, so they are not written out.
- ``__code__`` can only be replaced by code with as many free variables as the function has cells. The trampoline uses
  none but is given the names of the original's; the clone has the cells, so ``super()``, ``__class__`` and captured
  variables work.
- The clone and what the trampoline reads of its ranges are globals of the user's module (``__perfkit__``,
  ``__perfkit_7__``), added when something first listens: Dynamo cannot handle objects among a code's constants.
- File name and first line are the original's: ``inspect.getsource``, tracebacks and torch.jit.script see the user's.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
import textwrap
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from perfkit.ranges import dynamo, enter_exit, listener_calls, listeners

if TYPE_CHECKING:
    from perfkit.ranges.range_objects import Range

_numbers = itertools.count(1)
#: Stands in the text of a trampoline for the name of its function's global.
_SITE = "__perfkit_site__"
#: What a trampoline reads of each of its ranges.
_READ = ("number", "inverse", "attributes", "handle")


class DecoratedFunction:
    """A decorated function: its clone, its ranges (outermost first), and its trampolines by mode."""

    def __init__(self, function: types.FunctionType, clone: types.FunctionType, ranges: tuple[Range, ...]) -> None:
        self.function = clone
        self.ranges = ranges
        self.own = self._installed = function.__code__
        self._reference = weakref.ref(function)
        self._name = f"__perfkit_{next(_numbers)}__"
        self._trampolines: dict[int, types.CodeType] = {}

    def __repr__(self) -> str:
        return f"perfkit.range on {self.function.__qualname__}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.function, self.ranges)

    def surround(self, made: Range) -> None:
        """Add a range around the others."""
        self.ranges = (made, *self.ranges)
        self._trampolines.clear()
        listeners.register(self)

    def load(self) -> None:
        """Set the attributes that trampolines read of each range: ``number0``, ``attributes0``, ..."""
        for index, made in enumerate(self.ranges):
            for name, value in zip(_READ, (made.number, ~made.number, *made.nvtx_attributes()), strict=True):
                setattr(self, f"{name}{index}", value)

    def install(self, mode: int) -> None:
        """Give the function the trampoline for these listeners, or its own code for none."""
        function = self._reference()
        if function is None:
            return
        if function.__code__ is not self._installed:
            # Other code was assigned (IPython's autoreload): that is the function now.
            self.own = self._installed = self.function.__code__ = function.__code__
            self._trampolines.clear()
        code = self.own
        if mode:
            if mode not in self._trampolines:
                self.load()
                self._trampolines[mode] = _compile(self.own, self.ranges, self._name, mode)
                self._inject(function)
            code = self._trampolines[mode]
            dynamo.skip(code)
        if code is not self._installed:
            function.__code__ = self._installed = code

    def _inject(self, function: types.FunctionType) -> None:
        space = function.__globals__
        if self._name not in space:
            space["__perfkit__"] = listener_calls
            space[self._name] = self
            # A function that is made again and again must not leave its clones in the module.
            weakref.finalize(function, space.pop, self._name, None).atexit = False


def _restore(function: types.FunctionType, ranges: tuple[Range, ...]) -> DecoratedFunction:
    # A function pickled by value while something listened: its trampoline reads this in the new process.
    decorated = DecoratedFunction(function, function, ranges)
    decorated.load()
    return decorated


def _signature(code: types.CodeType) -> tuple[str, str]:
    """(parameters, arguments) of a trampoline as text: ``"a, /, *b, c"`` and ``"a, *b, c=c"``."""
    names = list(code.co_varnames)
    positional = names[: code.co_argcount]
    keywords = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = names[code.co_argcount + code.co_kwonlyargcount :]
    parameters, arguments = list(positional), list(positional)
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        name = rest.pop(0)
        parameters.append(f"*{name}")
        arguments.append(f"*{name}")
    elif keywords:
        parameters.append("*")
    parameters += keywords
    arguments += [f"{name}={name}" for name in keywords]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        name = rest.pop(0)
        parameters.append(f"**{name}")
        arguments.append(f"**{name}")
    return ", ".join(parameters), ", ".join(arguments)


# `yield from` for async generators, which Python does not have: what is sent or thrown in, and a close, go to the
# clone, as PEP 380 specifies for generators.
_ASYNC_GENERATOR = """
__perfkit_generator = {call}
try:
    __perfkit_value = await __perfkit_generator.__anext__()
    while True:
        try:
            __perfkit_value = yield __perfkit_value
        except GeneratorExit:
            await __perfkit_generator.aclose()
            raise
        except BaseException as __perfkit_error:
            __perfkit_value = await __perfkit_generator.athrow(__perfkit_error)
        else:
            __perfkit_value = await __perfkit_generator.asend(__perfkit_value)
except StopAsyncIteration:
    return"""


def _compile(code: types.CodeType, ranges: tuple[Range, ...], site: str, mode: int) -> types.CodeType:
    """The trampoline of a function with this code and these ranges, for these listeners.

    Those of a model's modules differ in names alone: their text is compiled once.
    """
    parameters, arguments = _signature(code)
    call = f"__perfkit_function({arguments})"
    flags = code.co_flags
    awaits = flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
    suspends = bool(awaits or flags & inspect.CO_GENERATOR)
    if flags & inspect.CO_ASYNC_GENERATOR:
        body = _ASYNC_GENERATOR.format(call=call)
    elif flags & inspect.CO_COROUTINE:
        body = f"return await {call}"
    elif flags & inspect.CO_GENERATOR:
        body = f"return (yield from {call})"
    else:
        body = f"return {call}"
    # Read into a local first: Python 3.11 specializes `site.function`, but not the call `site.function(...)`.
    begins = [f"__perfkit_function = {_SITE}.function"]
    ends: list[str] = []
    for index, made in enumerate(ranges):
        names = {name: f"{_SITE}.{name}{index}" for name in _READ} | {"name": repr(_name(index))}
        begin, end = enter_exit.statements(
            made.own_mode(mode),
            "overlapping" if suspends else "call",
            names,
            calls="__perfkit__.",
            kept="__perfkit_kept",
            suffix=f"_{index}",
        )
        begins += begin
        ends[:0] = end
    text = "\n".join(
        [
            f"{'async ' if awaits else ''}def trampoline({parameters}):",
            textwrap.indent("\n".join(begins), "    "),
            "    try:",
            textwrap.indent(body, "        "),
            "    finally:",
            textwrap.indent("\n".join(ends), "        "),
        ]
    )
    made_code = _code_of(text, code.co_filename, code.co_firstlineno)
    own = {_name(index): made.name for index, made in enumerate(ranges)}
    changes: dict[str, Any] = {
        "co_names": tuple(site if name == _SITE else name for name in made_code.co_names),
        "co_consts": tuple(own.get(one, one) if isinstance(one, str) else one for one in made_code.co_consts),
        "co_name": code.co_name,
        "co_freevars": code.co_freevars,
        "co_flags": made_code.co_flags | flags & inspect.CO_ITERABLE_COROUTINE,
    }
    if sys.version_info >= (3, 11):
        changes["co_qualname"] = code.co_qualname
    return made_code.replace(**changes)


def _name(index: int) -> str:
    """Stands in the text of a trampoline for the name of a range."""
    return f"__perfkit_name_{index}__"


@functools.lru_cache(maxsize=256)
def _code_of(text: str, filename: str, line: int) -> types.CodeType:
    """The code of the function that a text defines, all of it at one line of a file."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler, ast.arg, ast.keyword)):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = compile(tree, filename, "exec", dont_inherit=True)
    return next(constant for constant in module.co_consts if isinstance(constant, types.CodeType))
