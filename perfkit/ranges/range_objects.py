"""The objects that ``perfkit.range("x")`` returns: one per name, kept here, and the methods that ``with`` calls.

Why a range costs next to nothing while nothing listens:

- ``with`` looks up ``__enter__`` and ``__exit__`` on the *type*. So each named range is a class of its own with one
  instance, and switching a listener replaces two functions of the class. `enter_exit` generates them for exactly the
  listeners that are on.
- A Python function found on a type is bound to the instance and runs in a new frame. A C callable that is no descriptor
  is called as it is. ``ContextVar("", default=r).get`` is such a callable. Its variable is never set, so it returns
  what ``with ... as`` must: the range. ``contextlib.ExitStack`` calls ``type(cm).__enter__(cm)``, with one argument
  more, and ``get`` then returns that argument.
- ``with`` loads both functions before it enters. So a range that is open while a listener is switched ends with the
  functions that it began with.

A range holds no state of an entry, so recursion and threads need no care: the recorder's events carry the range's
number, NVTX has a stack per thread, and the handles of the torch profiler are kept per thread and range.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from perfkit._nvtx_names import DOMAIN
from perfkit.ranges import decorator, dynamo, enter_exit, listeners, nvtx_listener, range_arguments
from perfkit.ranges.listeners import DEVICE, NVTX, RECORDER
from perfkit.ranges.range_arguments import Payload

#: Maximum number of ranges that are kept (11 MB when full). A program has some hundred range names; only one that puts
#: numbers into names reaches this. Beyond it a range is made anew each time, and the recorder adds them up in one row.
LIMIT = 4096

#: Name of the row in which the recorder adds up the ranges beyond the limit.
OTHERS = f"(more than {LIMIT} names)"


#: The (range, function that ends it) of each ``async with`` that is open in this task, for tasks of any event loop.
_open_async: ContextVar[tuple[tuple[Range, Callable[[], None]], ...]] = ContextVar("perfkit.open_ranges", default=())


class _WithoutTorch:
    """Base of `Range` until torch is loaded; see `inherit`. It must be an ordinary class with a ``__dict__``."""


class Range(_WithoutTorch):
    """A named range: a context manager, an async one, and a decorator."""

    #: Class of this range with a payload, once an NVTX tool has been shown one; see `NamedRange.with_payload`.
    payload_class: type[PayloadRange] | None = None
    #: Dynamo reads this of a ``record_function`` besides its name.
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
        return decorator.decorate(function, self)

    if TYPE_CHECKING:  # `NamedRange.install` puts the real ones into the class of each range

        def __enter__(self) -> Range: ...

        def __exit__(self, kind: object, error: object, traceback: object) -> None: ...

    async def __aenter__(self) -> Range:
        end = enter_exit.begin_function(self.own_mode(listeners.mode), "overlapping")(self)
        _open_async.set((*_open_async.get(), (self, end)))
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        opened = _open_async.get()
        for index in reversed(range(len(opened))):
            made, end = opened[index]
            if made is self:
                _open_async.set(opened[:index] + opened[index + 1 :])
                end()
                return

    def own_mode(self, mode: int) -> int:
        """``mode``, with device times where this range asks for them."""
        return mode | DEVICE if self.device_time and mode & RECORDER else mode

    def nvtx_attributes(self) -> tuple[Any, Any]:
        """Event attributes and the domain's handle for NVTX calls, made once."""
        if self._nvtx is None:
            self._nvtx = nvtx_listener.attributes(self.name, self.color, self.category, self.domain, None)
        return self._nvtx


def inherit(record_function: type) -> None:
    """Make ranges real ``torch.profiler.record_function`` objects, which Dynamo requires.

    Of the context managers made outside a compiled function, Dynamo accepts only instances of that class (and
    ``nullcontext``). Nothing else of it is used: each range has its own enter and exit. Existing ranges change with
    their base, so it does not matter when torch is imported.
    """

    class _WithTorch(record_function):  # type: ignore[misc]  # known at run time only
        def __init__(self) -> None:
            pass

    Range.__bases__ = (_WithTorch,)


class NamedRange(Range):
    """A range that is kept; each is the one instance of a subclass."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._enter_off = ContextVar("perfkit.range", default=self).get
        self._mode = 0

    def install(self, mode: int) -> None:
        """Put the functions for these listeners into the class."""
        mode = self.own_mode(mode)
        if mode == 0:
            entering: Any = self._enter_off
            leaving: Any = _leave_off
        else:
            entering, leaving = enter_exit.with_functions(mode, "with")(self, *self.nvtx_attributes())
            entering = staticmethod(entering)
        _put(type(self), entering, leaving, first_leave=bool(mode & ~self._mode))
        if self.payload_class is not None:
            self._install_payload(self.payload_class, mode)
        self._mode = mode

    def with_payload(self, payload: Payload) -> PayloadRange:
        """The range with a payload, for an NVTX tool to show."""
        if self.payload_class is None:
            with listeners.lock:
                content = {"__slots__": (), "__module__": "perfkit", "made": self}
                content.update((name, getattr(self, name)) for name in _FIELDS)
                made = type("range", (PayloadRange,), content)
                self._install_payload(made, self._mode)
                self.payload_class = made
        return self.payload_class(payload)

    def _install_payload(self, payload_class: type[PayloadRange], mode: int) -> None:
        form: listeners.Form = "payload" if mode & NVTX else "with"
        functions = enter_exit.with_functions(mode, form)(self, [], self.nvtx_attributes()[1])
        _put(payload_class, *functions, first_leave=bool(mode & ~self._mode))


_FIELDS = ("number", "name", "color", "category", "domain", "device_time")


def _put(cls: type, entering: object, leaving: Any, *, first_leave: bool) -> None:
    # Another thread may enter between the two assignments. In this order (when a listener comes, the exit first) it can
    # at worst end what it did not begin, which every listener ignores, and never leave a range open.
    pair = (("__enter__", entering), ("__exit__", staticmethod(leaving)))
    for attribute, function in reversed(pair) if first_leave else pair:
        setattr(cls, attribute, function)


def _leave_off(a: object, b: object, c: object, d: object = None) -> None:
    # `with` passes three arguments, `ExitStack` the object too.
    pass


class OverflowRange(Range):
    """A range beyond the limit, made for one use; all such ranges share one number."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.payload: Payload | None = None
        self._ends: list[Callable[[], None]] = []

    def __enter__(self) -> Range:
        self._ends.append(enter_exit.begin_function(self.own_mode(listeners.mode), "call")(self))
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._ends:
            self._ends.pop()()

    def nvtx_attributes(self) -> tuple[Any, Any]:
        """As for every range, but not kept in the tool's table of names."""
        return nvtx_listener.attributes(self.name, self.color, self.category, self.domain, self.payload, keep=False)


class PayloadRange(Range):
    """A range with a payload for an NVTX tool; `NamedRange.with_payload` makes a subclass for each range."""

    made: NamedRange
    _nvtx = None

    def __init__(self, payload: Payload) -> None:
        self.payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return with_payload, (self.made, self.payload)

    def nvtx_attributes(self) -> tuple[Any, Any]:
        """As for every range, with the payload."""
        return nvtx_listener.attributes(self.name, self.color, self.category, self.domain, self.payload)


#: Every kept range by its arguments, colours as numbers and the domain filled in.
_ranges: dict[tuple[str, int | None, str | None, str, bool], Range] = {}
_by_number: list[Range] = []


def find(name: object, color: object, category: object, domain: object, device_time: object = False) -> Range:
    """The range with these arguments, made on first use.

    Raises:
        UsageError: one of them is invalid.
    """
    text = range_arguments.check_text("name", name)
    number = range_arguments.check_color(color)
    group = range_arguments.check_text("category", category) if category is not None else None
    space = range_arguments.check_text("domain", domain) if domain is not None else DOMAIN
    key = (text, number, group, space, bool(device_time))
    with listeners.lock:
        found = _ranges.get(key)
        if found is not None:
            return found
        if len(_ranges) < LIMIT:
            made = _ranges[key] = _new(*key)
            return made
        others = _by_number[0]
    listeners.warn_once(
        f"this program has made more than {LIMIT} different ranges; the recorder adds further ones up as {OTHERS!r}. "
        f"Keep the name constant and put what changes into payload=: perfkit.range('step', payload=7)",
        key="limit",
    )
    return OverflowRange(others.number, *key)


_INT64 = 1 << 63


def with_payload(made: Range, payload: object) -> Range:
    """``made`` with a payload, where a tool can show it; an invalid payload is dropped with a warning."""
    payload_class = made.payload_class
    # The second and all further payloads of the usual kind.
    if payload_class is not None and type(payload) is int and -_INT64 <= payload < _INT64:
        return payload_class(payload)
    value = range_arguments.check_payload(payload)
    if value is None:
        listeners.warn_once(
            f"the payload of a range must be an int of 64 bits or a float, got {type(payload).__name__}; "
            f"{made!r} is used without it",
            key=f"payload {type(payload).__name__}",
        )
        return made
    if not listeners.mode & NVTX:
        return made
    if isinstance(made, NamedRange):
        return made.with_payload(value)
    if isinstance(made, OverflowRange):
        made.payload = value
    return made


def by_number(number: int) -> Range:
    """The range that events with this number belong to."""
    return _by_number[number]


def _new(*key: Any) -> Range:
    with listeners.lock:
        its_class = type("range", (NamedRange,), {"__slots__": (), "__module__": "perfkit"})
        made: NamedRange = its_class(len(_by_number), *key)
        _by_number.append(made)
    listeners.register(made)
    return made


# Number 0: the row of all ranges beyond the limit.
_new(OTHERS, None, None, DOMAIN, False)

_OWN = (_leave_off, Range.__aenter__, Range.__aexit__, OverflowRange.__enter__, OverflowRange.__exit__)
dynamo.leave_alone(*(function.__code__ for function in _OWN))
