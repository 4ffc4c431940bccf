"""``@perfkit.range``: the function stays the user's own; its code is swapped while something listens.

With nothing listening a decorated function runs its own code: not a call, not a test more. While something
listens, ``function.__code__`` is a *trampoline*: code with the same signature that writes the begin, calls
a clone of the function, and writes the end in a ``finally``. For

    def forward(self, x, *, scale=1.0): ...

and the recorder it reads

    def forward(self, x, *, scale):
        try:
            __perfkit_buffer = __perfkit__.tls.buffer
        except AttributeError:
            __perfkit_buffer = __perfkit__.new_buffer()
        __perfkit_buffer.append(__perfkit_7__.number0)
        __perfkit_buffer.append(__perfkit__.clock())
        try:
            return __perfkit_7__.function(self, x, scale=scale)
        finally:
            __perfkit_buffer.append(__perfkit_7__.inverse0)
            __perfkit_buffer.append(__perfkit__.clock())

What makes it right:

- A running frame keeps its code, so what began with a trampoline ends with it, whatever is switched. What
  must be kept between begin and end lies in the frame's locals: coroutines and generators need no more.
- Defaults stay on the function object and bind as ever, which is why they are not written out.
- ``__code__`` can only be replaced by code with as many free variables as the function has cells. The
  trampoline uses none but is given the names of the original's; the clone holds the cells, so ``super()``,
  ``__class__`` and captured variables work.
- The clone and its listeners' data are reached through globals of the user's module (``__perfkit__``,
  ``__perfkit_7__``), put there at the first switch-on: Dynamo cannot handle objects among a code's constants.
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
from typing import Any, cast

from perfkit.errors import UsageError
from perfkit.ranges import calls, dynamo, listeners
from perfkit.ranges.context import Range
from perfkit.ranges.listeners import DENSE, NVTX, PROFILER, RECORDER

_numbers = itertools.count(1)


class Site:
    """One decorated function: its clone, its ranges (outermost first), and its trampolines by mode."""

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
        """Put one more range around those that are there."""
        self.ranges = (made, *self.ranges)
        self._trampolines.clear()
        listeners.register(self)

    def load(self) -> None:
        """Lay what trampolines read of each range where they read it: ``number0``, ``attributes0``, ..."""
        names = ("number", "inverse", "attributes", "handle")
        for index, made in enumerate(self.ranges):
            for name, value in zip(names, (made.number, ~made.number, *made.nvtx()), strict=True):
                setattr(self, f"{name}{index}", value)

    def listen(self, mode: int) -> None:
        function = self._reference()
        if function is None:
            return
        if function.__code__ is not self._installed:
            # Somebody else replaced the code (IPython's autoreload): theirs is the function now.
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
            space["__perfkit__"] = calls
            space[self._name] = self
            # A function that is made again and again must not leave its clone behind in the module.
            weakref.finalize(function, space.pop, self._name, None).atexit = False


def _restore(function: types.FunctionType, ranges: tuple[Range, ...]) -> Site:
    # A function pickled by value while something listened: its trampoline calls this site in the new process.
    site = Site(function, function, ranges)
    site.load()
    return site


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


def _begin(mode: int, index: int, made: Range, site: str, suspends: bool) -> list[str]:
    lines = []
    if mode & RECORDER and made.device_time:
        lines.append(f"__perfkit_device{index} = __perfkit__.device_begin({site}.number{index})")
    if mode & PROFILER:
        lines.append(f"__perfkit_profiler{index} = __perfkit__.profiler_enter({made.name!r})")
    if mode & NVTX:
        call = f"({site}.attributes{index}, {site}.handle{index})"
        lines.append(f"__perfkit_nvtx{index} = __perfkit__.start{call}[0]" if suspends else f"__perfkit__.push{call}")
    if mode & RECORDER:
        lines.append("try: __perfkit_buffer = __perfkit__.tls.buffer")
        lines.append("except AttributeError: __perfkit_buffer = __perfkit__.new_buffer()")
        if mode & DENSE:
            lines.append("if __perfkit__.len(__perfkit_buffer) > __perfkit__.limit:")
            lines.append("    __perfkit_buffer = __perfkit__.full()")
        lines += _event(f"{site}.number{index}", suspends)
    return lines


def _end(mode: int, index: int, made: Range, site: str, suspends: bool) -> list[str]:
    lines = []
    if mode & RECORDER:
        lines += _event(f"{site}.inverse{index}", suspends)
    if mode & NVTX and suspends:
        lines.append(f"__perfkit__.end(__perfkit_nvtx{index}, {site}.handle{index})")
    elif mode & NVTX:
        lines.append(f"__perfkit__.pop({site}.handle{index})")
    if mode & PROFILER:
        lines.append(f"__perfkit__.profiler_exit(__perfkit_profiler{index})")
    if mode & RECORDER and made.device_time:
        lines.append(f"__perfkit__.device_end(__perfkit_device{index})")
    return lines


def _event(number: str, suspends: bool) -> list[str]:
    if suspends:
        # It may end in another thread than it began in: one call, which that thread's own events cannot split.
        return [f"__perfkit_buffer.extend(({number}, __perfkit__.clock()))"]
    return [f"__perfkit_buffer.append({number})", "__perfkit_buffer.append(__perfkit__.clock())"]


# `yield from` for async generators, which the language does not have: what is sent, thrown in, or closed
# goes to the clone, as PEP 380 says for generators.
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
    """The trampoline of a function with this code, for these listeners."""
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
    # Taken into a local first: Python 3.11 specializes `site.function`, but not the call `site.function(...)`.
    begins = [f"__perfkit_function = {site}.function"]
    begins += [line for index, made in enumerate(ranges) for line in _begin(mode, index, made, site, suspends)]
    ends = [
        line for index, made in reversed(list(enumerate(ranges))) for line in _end(mode, index, made, site, suspends)
    ]
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
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler, ast.arg, ast.keyword)):
            node.lineno = node.end_lineno = code.co_firstlineno
            node.col_offset = node.end_col_offset = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = compile(tree, code.co_filename, "exec", dont_inherit=True)
    made_code = next(constant for constant in module.co_consts if isinstance(constant, types.CodeType))
    changes: dict[str, Any] = {
        "co_name": code.co_name,
        "co_freevars": code.co_freevars,
        "co_flags": made_code.co_flags | flags & inspect.CO_ITERABLE_COROUTINE,
    }
    if sys.version_info >= (3, 11):
        changes["co_qualname"] = code.co_qualname
    return made_code.replace(**changes)


def decorate(target: Any, made: Range) -> Any:
    """Put a range around a function, a method, a callable, or the ``forward`` of an nn.Module.

    Raises:
        UsageError: ``target`` is none of these.
    """
    if listeners.disabled:
        return target
    if isinstance(target, types.FunctionType):
        return _decorate_function(target, made)
    if isinstance(target, (staticmethod, classmethod)):
        inner = decorate(target.__func__, made)
        return target if inner is target.__func__ else type(target)(inner)
    if isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        return types.MethodType(_decorated_copy(target.__func__, made), target.__self__)
    if is_module(target):
        return _decorate_module(target, made)
    if callable(target) and not isinstance(target, type):
        return _decorate_function(_function_of(target), made)
    raise UsageError(
        f"perfkit.range decorates functions, methods and nn.Module classes or instances, "
        f"got {target!r} ({type(target).__name__})"
    )


def name_of(target: Any) -> str:
    """The name a range takes from what it decorates: ``__qualname__``, of a module that of its class."""
    for candidate in (getattr(target, "__func__", target), getattr(target, "func", None), type(target)):
        name = getattr(candidate, "__qualname__", None)
        if isinstance(name, str):
            return name
    return type(target).__name__


def is_module(target: Any) -> bool:
    """Whether ``target`` is an nn.Module class or instance; does not import torch."""
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    return module is not None and (
        isinstance(target, module) or (isinstance(target, type) and issubclass(target, module))
    )


def _site_of(function: types.FunctionType) -> Site | None:
    attributes = function.__dict__
    return attributes.site if isinstance(attributes, dynamo.Attributes) else None


def _decorate_function(function: types.FunctionType, made: Range) -> types.FunctionType:
    site = _site_of(function)
    if site is not None:
        site.surround(made)
    else:
        clone = _copy(function)
        site = Site(function, clone, (made,))
        dynamo.trace_instead(function, clone).site = site
        listeners.register(site)
    return function


def _decorated_copy(function: types.FunctionType, made: Range) -> types.FunctionType:
    """A copy of a function with its ranges and one more around them; the function itself is left alone."""
    site = _site_of(function)
    copied = _copy(function)
    for inner in reversed(site.ranges if site is not None else ()):
        _decorate_function(copied, inner)
    return _decorate_function(copied, made)


def _copy(function: types.FunctionType) -> types.FunctionType:
    site = _site_of(function)
    code = function.__code__ if site is None else site.own
    copied = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__qualname__ = function.__qualname__
    copied.__module__ = function.__module__
    copied.__doc__ = function.__doc__
    copied.__annotations__ = function.__annotations__
    copied.__dict__.update(function.__dict__)
    return copied


def _function_of(target: Any) -> types.FunctionType:
    """An ordinary wrapper for what has no Python code to swap: builtins, partials, callable objects."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await target(*args, **kwargs)

    wrapper: Any = call_async if inspect.iscoroutinefunction(target) else call
    functools.update_wrapper(wrapper, target, updated=())
    return cast(types.FunctionType, wrapper)


def _decorate_module(target: Any, made: Range) -> Any:
    # `forward`, not a forward hook: hooks cost 1.3 us a call, and make __call__ take its slow path.
    owner: Any = target if isinstance(target, type) else type(target)
    forward = vars(target).get("forward") or owner.forward
    forward = getattr(forward, "__func__", forward)
    if not isinstance(forward, types.FunctionType) or forward.__name__ == "_forward_unimplemented":
        raise UsageError(f"perfkit.range needs a forward() written in Python, {owner.__qualname__} has none")
    if isinstance(target, type):
        if "forward" in vars(target):
            _decorate_function(forward, made)
        else:
            owner.forward = _decorated_copy(forward, made)
    else:
        target.forward = types.MethodType(_decorated_copy(forward, made), target)
    return target
