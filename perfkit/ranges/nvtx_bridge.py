"""Ranges that a program already has through nvtx or ``torch.cuda.nvtx``, passed on to perfkit's listeners.

While the bridge is in place, these also reach the recorder and the traces of the torch profiler:

    with nvtx.annotate("x"):                      torch.cuda.nvtx.range_push("x"), range_pop()
    nvtx.push_range("x"), nvtx.pop_range()        with torch.cuda.nvtx.range("x"):
    @nvtx.annotate("x"), on functions that are decorated meanwhile and without an NVTX tool: they are decorated as by
        `perfkit.range`

The program may have these functions under names of its own (``from nvtx import push_range``). So the functions stay,
and only their ``__code__`` is replaced until `NvtxBridge.remove`. The original runs first; if it raises
(``torch.cuda.nvtx`` does on a CPU build), the error passes through and there is no range. A function that torch.compile
compiled with such a call in it (a graph break in any case) is compiled once more.

Not covered: functions decorated before, because ``nvtx.annotate`` returns the function itself where no tool is attached
at decoration; functions decorated with a tool attached; ``start_range`` and ``end_range``; the methods of a Domain,
which are compiled code; and ``annotate`` under ``NVTX_DISABLE``.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from perfkit import _import_hook
from perfkit._patches import Patches
from perfkit.errors import UsageError
from perfkit.ranges import decorator, dynamo, enter_exit, listeners, range_objects
from perfkit.ranges.listeners import DENSE, PROFILER, RECORDER
from perfkit.ranges.range_objects import Range

#: The domain of ranges without one, and the name of those without a message.
_DOMAIN = "default"
_NAMELESS = "(no message)"

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
#: What a bridged function does, given the original and the arguments.
Replacement = Callable[[Callable[..., Any], Arguments, Keywords], Any]


class _OpenRanges(threading.local):
    """What ends the open ranges of a thread, by domain, innermost last: NVTX has such a stack too."""

    def __init__(self) -> None:
        self.ends: dict[Any, list[Callable[[], None] | None]] = {}


class NvtxBridge:
    """The functions of nvtx and torch.cuda.nvtx that also reach perfkit's listeners, until ``remove()``."""

    def __init__(self) -> None:
        self._thread = _OpenRanges()
        self._made: dict[tuple[Any, Any, Any], Range] = {}
        self._patches = Patches()
        self._watches = [
            _import_hook.when_imported("torch", self._bridge_torch),
            _import_hook.when_imported("nvtx", self._bridge_nvtx),
        ]

    def remove(self) -> None:
        """Restore every function; ranges that are open are not counted. Removing again does nothing."""
        global _active
        for cancel in self._watches:
            cancel()
        self._patches.undo()
        if _active is self:
            _active = None

    def _bridge_torch(self) -> None:
        nvtx = sys.modules.get("torch.cuda.nvtx")
        # `torch.cuda.nvtx.range` calls these two.
        self._replace("torch.cuda.nvtx.range_push", getattr(nvtx, "range_push", None), self._range_push)
        self._replace("torch.cuda.nvtx.range_pop", getattr(nvtx, "range_pop", None), self._pop_range)

    def _bridge_nvtx(self) -> None:
        nvtx = sys.modules.get("nvtx")
        self._replace("nvtx.push_range", getattr(nvtx, "push_range", None), self._push_range)
        self._replace("nvtx.pop_range", getattr(nvtx, "pop_range", None), self._pop_range)
        # Only the class's own methods: under NVTX_DISABLE it is contextlib.nullcontext, which other code uses too.
        methods = vars(getattr(nvtx, "annotate", object))
        if "__enter__" in methods:
            self._replace("nvtx.annotate.__enter__", methods["__enter__"], self._enter)
            self._replace("nvtx.annotate.__exit__", methods.get("__exit__"), self._exit)
            self._replace("nvtx.annotate.__call__", methods.get("__call__"), self._decorate)

    def _replace(self, name: str, function: object, replacement: Replacement) -> None:
        if not isinstance(function, types.FunctionType) or function.__closure__:
            listeners.warn_once(f"ranges of {name} are not recorded: this release implements it in another way")
            return
        original = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__ = function.__kwdefaults__
        code = _code(name, function.__code__)
        _replacements[name] = original, replacement
        function.__code__ = code

        def restore() -> None:
            # Code that was assigned meanwhile stays.
            if function.__code__ is code:
                function.__code__ = original.__code__

        self._patches.add(name, restore)

    def _push_range(self, original: Callable[..., Any], args: Arguments, keywords: Keywords) -> Any:
        result = original(*args, **keywords)
        given = dict(zip(("message", "color", "domain", "category"), args, strict=False)) | keywords
        self._begin(given.get("message"), given.get("domain"), given.get("category"))
        return result

    def _range_push(self, original: Callable[..., Any], args: Arguments, keywords: Keywords) -> Any:
        result = original(*args, **keywords)
        self._begin(args[0] if args else keywords.get("msg"), None, None)
        return result

    def _pop_range(self, original: Callable[..., Any], args: Arguments, keywords: Keywords) -> Any:
        self._end(args[0] if args else keywords.get("domain"))
        return original(*args, **keywords)

    def _enter(self, original: Callable[..., Any], args: Arguments, keywords: Keywords) -> Any:
        result = original(*args, **keywords)
        self._begin(*_given(args[0]))
        return result

    def _exit(self, original: Callable[..., Any], args: Arguments, keywords: Keywords) -> Any:
        self._end(_given(args[0])[1])
        return original(*args, **keywords)

    def _decorate(self, original: Callable[..., Any], args: Arguments, keywords: Keywords) -> Any:
        result = original(*args, **keywords)
        function = args[1] if len(args) > 1 else keywords.get("func")
        # With a tool attached the result is nvtx's wrapper, else the function itself.
        if result is function and isinstance(function, types.FunctionType):
            message, domain, category = _given(args[0])
            try:
                decorator.decorate(function, self._range(message or function.__name__, domain, category))
            except Exception as error:  # noqa: BLE001 - the program decorates for nvtx, and perfkit must not stop it
                listeners.warn_once(f"a function decorated by nvtx.annotate is not recorded: {error}")
        return result

    def _range(self, message: Any, domain: Any, category: Any) -> Range:
        key = message, domain, category
        made = self._made.get(key)
        if made is None:
            made = range_objects.find(
                _NAMELESS if message in (None, "") else message,
                None,
                None if category in (None, "") else str(category),
                domain or _DOMAIN,
            )
            if len(self._made) < range_objects.LIMIT:
                self._made[key] = made
        return made

    def _begin(self, message: Any, domain: Any, category: Any) -> None:
        end = None
        # An NVTX tool gets the range from the original function.
        mode = listeners.mode & (RECORDER | DENSE | PROFILER)
        if mode:
            try:
                made = self._range(message, domain, category)
                end = enter_exit.begin_function(mode, "overlapping")(made)
            except Exception as error:  # noqa: BLE001 - the program's nvtx calls must not raise an error of perfkit
                listeners.warn_once(f"a range of nvtx is not recorded: {error}", key="bridged range")
        # None where nothing was begun, so that its end does not end the range around it.
        self._thread.ends.setdefault(domain, []).append(end)

    def _end(self, domain: Any) -> None:
        try:
            ends = self._thread.ends.get(domain)
        except TypeError:
            return  # The domain is invalid: the original raises.
        end = ends.pop() if ends else None
        if end is not None:
            end()


def _given(annotate: Any) -> tuple[Any, Any, Any]:
    """(message, domain, category) that an ``nvtx.annotate`` was made with; a subclass may not have kept them."""
    message, _, domain, category, _ = getattr(annotate, "init_args", (None,) * 5)
    return message, domain, category


#: name -> the original as a separate function, and its replacement. Kept after `NvtxBridge.remove`: a thread may be
#: about to call it.
_replacements: dict[str, tuple[Callable[..., Any], Replacement]] = {}
_codes: dict[str, types.CodeType] = {}
_active: NvtxBridge | None = None


def call(name: str, args: Arguments, keywords: Keywords) -> Any:
    """Called by the replaced code of a bridged function."""
    original, replacement = _replacements[name]
    return original(*args, **keywords) if _active is None else replacement(original, args, keywords)


def _code(name: str, own: types.CodeType) -> types.CodeType:
    """The code of a function while it is bridged. It imports what it calls: nothing is added to its module."""
    if name not in _codes:
        space: dict[str, Any] = {}
        text = (
            "def bridged(*args, **keywords):\n"
            "    from perfkit.ranges.nvtx_bridge import call\n"
            f"    return call({name!r}, args, keywords)\n"
        )
        exec(compile(text, own.co_filename, "exec", dont_inherit=True), space)
        _codes[name] = space["bridged"].__code__.replace(co_name=own.co_name, co_firstlineno=own.co_firstlineno)
        dynamo.leave_alone(_codes[name])
    return _codes[name]


def bridge_nvtx() -> NvtxBridge:
    """Pass ranges of nvtx and torch.cuda.nvtx on to perfkit's recorder and the torch profiler, until ``remove()``.

    A library that is not imported yet is bridged when it is imported.

    Raises:
        UsageError: there is a bridge already.
    """
    global _active
    if _active is not None:
        raise UsageError("the ranges of nvtx are recorded already: remove() the first bridge")
    _active = NvtxBridge()
    return _active
