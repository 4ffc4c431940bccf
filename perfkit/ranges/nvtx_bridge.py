"""Ranges that a program already has, through nvtx or ``torch.cuda.nvtx``, taken into perfkit's listeners for a while.

While borrowed, these reach the recorder and the traces of the torch profiler, besides what they do anyway:

    with nvtx.annotate("x"):                      torch.cuda.nvtx.range_push("x"), range_pop()
    nvtx.push_range("x"), nvtx.pop_range()        with torch.cuda.nvtx.range("x"):
    @nvtx.annotate("x"), on functions that are decorated while borrowed and without an NVTX tool: they are
        decorated as by `perfkit.range`, which is nothing as soon as nothing listens

The program may hold these functions under names of its own (``from nvtx import push_range``). So not the names
are replaced: the functions stay, and until `give_back` their ``__code__`` is another one. The original runs
first and its error passes through (``torch.cuda.nvtx`` raises on a CPU build): then there is no range. A function that
torch.compile has compiled with such a call in it (a graph break in any case) is compiled once more.

What cannot be seen: functions decorated before, as ``nvtx.annotate`` decides at decoration whether a tool is
there, and returns the function itself if not; functions decorated with a tool attached; ``start_range`` and
``end_range``; the methods of a Domain, which are compiled; and ``annotate`` under ``NVTX_DISABLE``.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from perfkit import _import_hook
from perfkit.errors import UsageError
from perfkit.ranges import calls, context, decorator, dynamo, listeners
from perfkit.ranges.context import Range
from perfkit.ranges.listeners import PROFILER, RECORDER

#: The domain of ranges whose program names none, and the name of those without a message.
_DOMAIN = "default"
_NAMELESS = "(no message)"

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
#: What a borrowed function does now, given the original and the arguments.
Does = Callable[[Callable[..., Any], Arguments, Keywords], Any]


class _Open(NamedTuple):
    """A borrowed range that is open in a thread; each listener's part is None where it did not listen."""

    number: int
    buffer: list[int] | None
    handle: Any


class _Thread(threading.local):
    """The open ranges of a thread by domain, innermost last: NVTX has such a stack too."""

    def __init__(self) -> None:
        self.opened: dict[Any, list[_Open | None]] = {}


class BorrowedNvtx:
    """What `borrow_nvtx` has borrowed, until ``give_back()``."""

    def __init__(self) -> None:
        self._thread = _Thread()
        self._made: dict[tuple[Any, Any, Any], Range] = {}
        #: name -> the function, its own code, and the code it has while borrowed.
        self._functions: dict[str, tuple[types.FunctionType, types.CodeType, types.CodeType]] = {}
        self._watches = [
            _import_hook.when_imported("torch", self._borrow_from_torch),
            _import_hook.when_imported("nvtx", self._borrow_from_nvtx),
        ]

    @property
    def names(self) -> list[str]:
        """The functions that are borrowed now."""
        return list(self._functions)

    def give_back(self) -> None:
        """Put every function back as it was; ranges that are open then are not counted. Again does nothing."""
        global _active
        for cancel in self._watches:
            cancel()
        while self._functions:
            _, (function, own, ours) = self._functions.popitem()
            # Where somebody else has replaced the code meanwhile, theirs stays.
            if function.__code__ is ours:
                function.__code__ = own
        if _active is self:
            _active = None

    def _borrow_from_torch(self) -> None:
        nvtx = sys.modules.get("torch.cuda.nvtx")
        # `range` calls these two.
        self._borrow("torch.cuda.nvtx.range_push", getattr(nvtx, "range_push", None), self._range_push)
        self._borrow("torch.cuda.nvtx.range_pop", getattr(nvtx, "range_pop", None), self._pop_range)

    def _borrow_from_nvtx(self) -> None:
        nvtx = sys.modules.get("nvtx")
        self._borrow("nvtx.push_range", getattr(nvtx, "push_range", None), self._push_range)
        self._borrow("nvtx.pop_range", getattr(nvtx, "pop_range", None), self._pop_range)
        # What the class has itself: under NVTX_DISABLE it is a contextlib.nullcontext, which others use too.
        methods = vars(getattr(nvtx, "annotate", object))
        if "__enter__" in methods:
            self._borrow("nvtx.annotate.__enter__", methods["__enter__"], self._enter)
            self._borrow("nvtx.annotate.__exit__", methods.get("__exit__"), self._exit)
            self._borrow("nvtx.annotate.__call__", methods.get("__call__"), self._decorate)

    def _borrow(self, name: str, function: object, does: Does) -> None:
        if not isinstance(function, types.FunctionType) or function.__closure__:
            listeners.tell(f"ranges of {name} are not taken into the recorder: this release has it in another form")
            return
        original = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__ = function.__kwdefaults__
        code = _code(name, function.__code__)
        _borrowed[name] = original, does
        self._functions[name] = function, function.__code__, code
        function.__code__ = code

    # -- what the borrowed functions do

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
        # With a tool attached the result is nvtx's wrapper; without one it is the function itself.
        if result is function and isinstance(function, types.FunctionType):
            message, domain, category = _given(args[0])
            try:
                decorator.decorate(function, self._range(message or function.__name__, domain, category))
            except Exception as error:  # noqa: BLE001 - the program decorates for nvtx; nothing of ours may stop it
                listeners.tell(f"a function of nvtx.annotate is not taken into the recorder: {error}")
        return result

    # -- ranges

    def _range(self, message: Any, domain: Any, category: Any) -> Range:
        key = message, domain, category
        made = self._made.get(key)
        if made is None:
            made = context.find(
                _NAMELESS if message in (None, "") else message,
                None,
                None if category in (None, "") else str(category),
                domain or _DOMAIN,
            )
            if len(self._made) < context.LIMIT:
                self._made[key] = made
        return made

    def _begin(self, message: Any, domain: Any, category: Any) -> None:
        opened = None
        mode = listeners.mode
        if mode & (RECORDER | PROFILER):
            try:
                made = self._range(message, domain, category)
                handle = calls.profiler_enter(made.name) if mode & PROFILER else None
                buffer = None
                if mode & RECORDER:
                    buffer = getattr(calls.tls, "buffer", None)
                    if buffer is None:
                        buffer = calls.new_buffer()
                    buffer.extend((made.number, calls.clock()))
                opened = _Open(made.number, buffer, handle)
            except Exception as error:  # noqa: BLE001 - nothing of ours may raise out of the program's nvtx calls
                listeners.tell(f"a range of nvtx is not taken into the recorder: {error}", once="borrowed range")
        # Where nothing was begun an empty place is: the end must not end the range around it.
        self._thread.opened.setdefault(domain, []).append(opened)

    def _end(self, domain: Any) -> None:
        try:
            stack = self._thread.opened.get(domain)
        except TypeError:
            return  # A domain that cannot be: the original will say so.
        opened = stack.pop() if stack else None
        if opened is None:
            return
        if opened.buffer is not None:
            opened.buffer.extend((~opened.number, calls.clock()))
        if opened.handle is not None:
            calls.profiler_exit(opened.handle)


def _given(annotate: Any) -> tuple[Any, Any, Any]:
    """(message, domain, category) that an ``nvtx.annotate`` was made with; a heir may not have kept them."""
    message, _, domain, category, _ = getattr(annotate, "init_args", (None,) * 5)
    return message, domain, category


#: name -> the original as a function of its own, and what it does while borrowed. Kept after `give_back`: a thread
#: may just be on its way here.
_borrowed: dict[str, tuple[Callable[..., Any], Does]] = {}
_codes: dict[str, types.CodeType] = {}
_active: BorrowedNvtx | None = None


def call(name: str, args: Arguments, keywords: Keywords) -> Any:
    """Where the replaced code of a borrowed function leads to."""
    original, does = _borrowed[name]
    return original(*args, **keywords) if _active is None else does(original, args, keywords)


def _code(name: str, own: types.CodeType) -> types.CodeType:
    """The code of a function while it is borrowed. It finds its way by an import: nothing is left in its module."""
    if name not in _codes:
        space: dict[str, Any] = {}
        text = (
            "def borrowed(*args, **keywords):\n"
            "    from perfkit.ranges.nvtx_bridge import call\n"
            f"    return call({name!r}, args, keywords)\n"
        )
        exec(compile(text, own.co_filename, "exec", dont_inherit=True), space)
        _codes[name] = space["borrowed"].__code__.replace(co_name=own.co_name, co_firstlineno=own.co_firstlineno)
        dynamo.leave_alone(_codes[name])
    return _codes[name]


def borrow_nvtx() -> BorrowedNvtx:
    """Take ranges of nvtx and torch.cuda.nvtx into perfkit's recorder and the torch profiler, until ``give_back()``.

    What is not imported yet is borrowed when it is.

    Raises:
        UsageError: they are borrowed already.
    """
    global _active
    if _active is not None:
        raise UsageError("the ranges of nvtx are borrowed already: give_back() first")
    _active = BorrowedNvtx()
    return _active


def borrowed() -> list[str]:
    """Names of the functions that are borrowed now."""
    return _active.names if _active is not None else []
