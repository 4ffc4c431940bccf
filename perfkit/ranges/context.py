"""``with perfkit.range("x")``: one object per name, and what stands in its class while who listens.

How it costs next to nothing when nobody listens:

- ``with`` looks up ``__enter__`` and ``__exit__`` on the *type*. So each named range is a class of its own
  with one instance, and switching a listener on or off means putting two other functions into the class.
  The functions are generated for exactly the listeners that are on; nothing tests a flag.
- A Python function found on a type is bound to the instance and run in a new frame. A C callable that is
  no descriptor is called as it is. ``ContextVar("", default=r).get`` is such a callable, and as its
  variable is never set, it returns what ``with ... as`` must: the range. ``contextlib.ExitStack`` calls
  ``type(cm).__enter__(cm)``, one argument more, and that works too: ``get`` then returns its argument.
- ``with`` loads both functions before it enters. So a listener that is switched while a range is open
  finds it balanced: what began with the old functions ends with the old functions.

The object holds no state of a particular entry, hence recursion and threads need no care: begin and end
of the recorder carry the range's number, NVTX has a stack per thread, and handles of the torch profiler
lie on a stack per thread and range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.ranges import arguments, calls, dynamo, listeners, nvtx_listener, profiler_listener
from perfkit.ranges.arguments import Payload
from perfkit.ranges.listeners import DENSE, NVTX, PROFILER, RECORDER

#: How many different ranges are kept (11 MB when full). A program has some hundred range names; only one that
#: puts numbers into them reaches this. Beyond it a range is made anew each time, and the recorder sums them up.
LIMIT = 4096

#: Name of the row in which the recorder sums up the ranges beyond the limit.
OTHERS = f"(more than {LIMIT} names)"


class _WithoutTorch:
    """Base of `Range` until torch is loaded; see `inherit`. It must be an ordinary class with a ``__dict__``."""


class Range(_WithoutTorch):
    """A named range: a context manager, an async one, and a decorator."""

    #: Class of this range with a payload, once an NVTX tool has been shown one; see `Named.loaded`.
    _loaded: type[Loaded] | None = None
    #: What Dynamo reads of a ``record_function`` besides its name.
    args: str | None = None

    def __init__(
        self,
        number: int,
        name: str,
        color: int | None,
        category: str | None,
        domain: str,
        device_time: bool = False,
    ) -> None:
        self.number = number
        self.name = name
        self.color = color
        self.category = category
        self.domain = domain
        self.device_time = device_time
        self._nvtx: tuple[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"perfkit.range({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (self.name, self.color, self.category, self.domain, self.device_time)

    def __call__(self, function: Any) -> Any:
        from perfkit.ranges.decorator import decorate

        return decorate(function, self)

    if TYPE_CHECKING:  # the real ones are put into the class of each range by `listen`

        def __enter__(self) -> Range: ...

        def __exit__(self, kind: object, error: object, traceback: object) -> None: ...

    async def __aenter__(self) -> Range:
        _open_async.set((*_open_async.get(), begin(self, nested=False)))
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        opened = _open_async.get()
        for index in reversed(range(len(opened))):
            if opened[index].range is self:
                _open_async.set(opened[:index] + opened[index + 1 :])
                end(opened[index])
                return

    def nvtx(self) -> tuple[Any, Any]:
        """Attributes and domain handle for `calls.push`, made once."""
        if self._nvtx is None:
            self._nvtx = nvtx_listener.attributes(self.name, self.color, self.category, self.domain, None)
        return self._nvtx


def inherit(record_function: type) -> None:
    """Make ranges real ``torch.profiler.record_function`` objects, for Dynamo's sake.

    Of the context managers that were made outside a compiled function Dynamo accepts only instances of
    that class (and ``nullcontext``). Nothing else of it is used: each range brings its own enter and exit.
    Existing ranges change with their base, so it does not matter when torch is imported.
    """

    class _WithTorch(record_function):  # type: ignore[misc]  # known at run time only
        def __init__(self) -> None:
            pass

    Range.__bases__ = (_WithTorch,)


class Named(Range):
    """A range that is kept; each is the one instance of a subclass."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._enter_off = ContextVar("perfkit.range", default=self).get
        self._mode = 0

    def listen(self, mode: int) -> None:
        if self.device_time and mode & RECORDER:
            mode |= _DEVICE
        if mode == 0:
            entering: Any = self._enter_off
            leaving: Any = _leave_off
        else:
            entering, leaving = _functions(mode)(self, *(self.nvtx() if mode & NVTX else (None, None)))
            entering = staticmethod(entering)
        _put(type(self), entering, leaving, first_leave=bool(mode & ~self._mode))
        if self._loaded is not None:
            self._listen_loaded(self._loaded, mode)
        self._mode = mode

    def loaded(self, payload: Payload) -> Loaded:
        """The range with a payload that an NVTX tool shall see."""
        if self._loaded is None:
            with listeners.lock:
                content = {"__slots__": (), "__module__": "perfkit", "made": self}
                content.update((name, getattr(self, name)) for name in _FIELDS)
                made = type("range", (Loaded,), content)
                self._listen_loaded(made, self._mode)
                self._loaded = made
        return self._loaded(payload)

    def _listen_loaded(self, loaded: type[Loaded], mode: int) -> None:
        if mode & NVTX:
            mode = mode & ~NVTX | _LOADED
        _put(loaded, *_functions(mode)(self, [], self.nvtx()[1]), first_leave=bool(mode & ~self._mode))


_FIELDS = ("number", "name", "color", "category", "domain", "device_time")


def _put(cls: type, entering: object, leaving: Any, *, first_leave: bool) -> None:
    # Another thread may enter between the two assignments. In this order (a listener that comes: the exit
    # first) it can at worst end what it did not begin, which every listener ignores, and never leave one open.
    pair = (("__enter__", entering), ("__exit__", staticmethod(leaving)))
    for attribute, function in reversed(pair) if first_leave else pair:
        setattr(cls, attribute, function)


def _leave_off(a: object, b: object, c: object, d: object = None) -> None:
    # `with` passes three arguments, `ExitStack` the object too.
    pass


#: Beside the listeners, what makes a pair of functions another one: a range with device time, one with a payload.
_DEVICE = 16
_LOADED = 32

# What a pair of functions consists of, in this order: the torch profiler outside NVTX, and the recorder innermost,
# which so sees the tightest interval. `number` says which range begins, `~number` which one ends.
_BEGIN = {
    _DEVICE: """
        device_enter(number)""",
    PROFILER: """
        try:
            handles = profiler.open_handles.by_id[number]
        except (AttributeError, KeyError):
            handles = profiler.new_handles(number)
        handles.append(profiler_enter(name))""",
    NVTX: """
        push(attributes, handle)""",
    # Attributes are made once and given each payload in turn. Whoever pushes has them for itself meanwhile, so
    # there are as many as threads have ever pushed at once. (Making them each time costs 1 us.)
    _LOADED: """
        try:
            loaded = attributes.pop()
        except IndexError:
            loaded = self.nvtx()[0]
        loaded.payload = self.payload
        push(loaded, handle)
        attributes.append(loaded)""",
    RECORDER: """
        try:
            buffer = tls.buffer
        except AttributeError:
            buffer = new_buffer()""",
    DENSE: """
        if len(buffer) > limit:
            buffer = full()""",
}
_BEGIN_EVENT = """
        buffer.append(number)
        buffer.append(clock())"""
_END = {
    RECORDER: """
        try:
            buffer = tls.buffer
        except AttributeError:
            buffer = new_buffer()
        buffer.append(inverse)
        buffer.append(clock())""",
    NVTX: """
        pop(handle)""",
    _LOADED: """
        pop(handle)""",
    PROFILER: """
        try:
            opened = profiler.open_handles.by_id[number].pop()
        except (AttributeError, KeyError, IndexError):
            pass
        else:
            profiler_exit(opened)""",
    _DEVICE: """
        device_leave(number)""",
}

_binders: dict[int, Callable[..., Callable[..., tuple[Any, Any]]]] = {}


def _functions(mode: int) -> Callable[..., tuple[Any, Any]]:
    """The function that makes (enter, exit) of a range for these listeners.

    What a listener calls is bound when the pair is made, as cells of a closure: that is why a listener that
    changes its calls has them made again (`switch.refresh`).
    """
    if mode not in _binders:
        begins = [text for bit, text in _BEGIN.items() if mode & bit]
        ends = [text for bit, text in _END.items() if mode & bit]
        text = (
            f"def bind(profiler, {', '.join(_CALLS)}):\n"
            "  def make(self, attributes, handle):\n"
            "    number, inverse, name = self.number, ~self.number, self.name\n"
            f"    def enter({'self' if mode & _LOADED else '_=None'}):"
            + "".join(begins)
            + (_BEGIN_EVENT if mode & RECORDER else "")
            + "\n        return self\n"
            + "    def leave(a, b, c, d=None):"
            + "".join(ends)
            + "\n        return None\n"
            + "    return enter, leave\n"
            + "  return make\n"
        )
        space: dict[str, Any] = {}
        exec(compile(text, "<perfkit range>", "exec", dont_inherit=True), space)
        _binders[mode] = space["bind"]
        dynamo.leave_alone(*_codes_within(space["bind"].__code__))
    return _binders[mode](profiler_listener, *(getattr(calls, name) for name in _CALLS))


_CALLS = (
    "tls",
    "new_buffer",
    "limit",
    "full",
    "clock",
    "push",
    "pop",
    "profiler_enter",
    "profiler_exit",
    "device_enter",
    "device_leave",
)


def _codes_within(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_within(constant)


class _Open(NamedTuple):
    """One entry of a range that is not a plain ``with``: what must be ended, and how."""

    range: Range
    mode: int
    nested: bool
    profiler: Any
    nvtx: Any
    buffer: Any
    device: Any


#: The async ranges open in this task. In a context variable, so that tasks of any event loop have their own.
_open_async: ContextVar[tuple[_Open, ...]] = ContextVar("perfkit.open_ranges", default=())


def begin(made: Range, *, nested: bool) -> _Open:
    """Enter a range whatever listens; ``nested=False`` where it may end out of order (NVTX start/end ranges)."""
    mode = listeners.mode
    device = calls.device_begin(made.number) if mode & RECORDER and made.device_time else None
    profiler = calls.profiler_enter(made.name) if mode & PROFILER else None
    started = None
    if mode & NVTX:
        attributes, handle = made.nvtx()
        if nested:
            calls.push(attributes, handle)
            started = handle
        else:
            started = (calls.start(attributes, handle)[0], handle)
    buffer = None
    if mode & RECORDER:
        buffer = getattr(calls.tls, "buffer", None)
        if buffer is None:
            buffer = calls.new_buffer()
        if mode & DENSE and len(buffer) > calls.limit:
            buffer = calls.full()
        # One call that cannot be split: the event that follows may be written from another thread.
        buffer.extend((made.number, calls.clock()))
    return _Open(made, mode, nested, profiler, started, buffer, device)


def end(opened: _Open) -> None:
    """End what `begin` began."""
    if opened.mode & RECORDER:
        opened.buffer.extend((~opened.range.number, calls.clock()))
    if opened.mode & NVTX:
        if opened.nested:
            calls.pop(opened.nvtx)
        else:
            calls.end(*opened.nvtx)
    if opened.mode & PROFILER:
        calls.profiler_exit(opened.profiler)
    if opened.device is not None:
        calls.device_end(opened.device)


class Nameless(Range):
    """A range beyond the limit, made for one use: its name is its own, its number that of all others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.payload: Payload | None = None
        # What it must end is kept in the object.
        self._opened: list[_Open] = []

    def __enter__(self) -> Range:
        self._opened.append(begin(self, nested=True))
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._opened:
            end(self._opened.pop())

    def nvtx(self) -> tuple[Any, Any]:
        return nvtx_listener.attributes(self.name, self.color, self.category, self.domain, self.payload, keep=False)


class Loaded(Range):
    """A range with a payload that an NVTX tool shall see; `Named.loaded` makes a subclass for each range."""

    made: Named
    _nvtx = None

    def __init__(self, payload: Payload) -> None:
        self.payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return with_payload, (self.made, self.payload)

    def nvtx(self) -> tuple[Any, Any]:
        return nvtx_listener.attributes(self.name, self.color, self.category, self.domain, self.payload)


#: Every kept range by its arguments, colours as numbers and the domain filled in.
_ranges: dict[tuple[str, int | None, str | None, str, bool], Range] = {}
_by_number: list[Range] = []


def find(name: object, color: object, category: object, domain: object, device_time: object = False) -> Range:
    """The range of these arguments, made on first use.

    Raises:
        UsageError: one of them cannot be.
    """
    text = arguments.check_text("name", name)
    number = arguments.check_color(color)
    group = arguments.check_text("category", category) if category is not None else None
    space = arguments.check_text("domain", domain) if domain is not None else arguments.DOMAIN
    key = (text, number, group, space, bool(device_time))
    with listeners.lock:
        found = _ranges.get(key)
        if found is not None:
            return found
        if len(_ranges) < LIMIT:
            made = _ranges[key] = _new(*key)
            return made
        others = _by_number[0]
    listeners.tell(
        f"a program has made more than {LIMIT} different ranges; the recorder sums up further ones as {OTHERS!r}. "
        f"Give a range one name and put what changes into payload=: perfkit.range('step', payload=7)",
        once="limit",
    )
    return Nameless(others.number, *key)


_INT64 = 1 << 63


def with_payload(made: Range, payload: object) -> Range:
    """``made`` with a payload, where a tool is there to see it; a payload that cannot be is dropped and told."""
    loaded = made._loaded
    # The second and all further ones of the usual kind.
    if loaded is not None and type(payload) is int and -_INT64 <= payload < _INT64:
        return loaded(payload)
    value = arguments.check_payload(payload)
    if value is None:
        listeners.tell(
            f"the payload of a range must be an int of 64 bits or a float, got {type(payload).__name__}; "
            f"{made!r} goes without it",
            once=f"payload {type(payload).__name__}",
        )
        return made
    if not listeners.mode & NVTX:
        return made
    if isinstance(made, Named):
        return made.loaded(value)
    if isinstance(made, Nameless):
        made.payload = value
    return made


def by_number(number: int) -> Range:
    """The range that events with this number belong to."""
    return _by_number[number]


def _new(*key: Any) -> Range:
    with listeners.lock:
        made: Named = type("range", (Named,), {"__slots__": (), "__module__": "perfkit"})(len(_by_number), *key)
        _by_number.append(made)
    listeners.register(made)
    return made


# Number 0: the row of all ranges beyond the limit.
_new(OTHERS, None, None, arguments.DOMAIN, False)

dynamo.leave_alone(
    *(
        function.__code__
        for function in (
            _leave_off,
            calls.throwaway,
            profiler_listener.new_handles,
            Range.__aenter__,
            Range.__aexit__,
            Nameless.__enter__,
            Nameless.__exit__,
        )
    )
)
