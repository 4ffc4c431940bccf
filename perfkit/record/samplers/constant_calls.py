"""Functions of the user's that return the same tensors in every step, as far as two steps show.

The result of a call is constant if nothing that it reads changes: its arguments are plain values, also in tuples and
lists, and tensors without a graph, the globals and the attributes of its object that it and the user's functions in it
read are modules, functions, classes and plain values, it closes over nothing, calls no module, no random number is
drawn meanwhile, and what it returns are tensors without a graph.

The step that is traced shows that for each call. The step after it, in which operations are counted, shows whether the
same line calls with the same arguments again: the same tensors unchanged, equal values, equal attributes, equal
results. Without that second step, functions with a tensor or an object are left out; numbers are taken for sizes,
unless the same line passes different ones; texts are taken for data, unless they stand in the code of the caller or are
a default.
"""

from __future__ import annotations

import ast
import dis
import inspect
import random
import weakref
from collections.abc import Callable
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from perfkit._code_owner import USER, function_name, owner_of
from perfkit._location import Location
from perfkit._raised_signals import leave_to_program
from perfkit.record.program_values import ABSENT, is_tensor, is_tracing, own_attribute, unseen, values_in
from perfkit.record.samplers.call_paths import Site
from perfkit.record.samplers.fingerprints import fingerprint, random_state
from perfkit.record.samplers.source_lookup import parsed
from perfkit.run.records import ConstantCalls

_PLAIN = (bool, int, float, str, bytes, type(None))
#: Globals that do not change; the value of a class or module is what its attributes are set to once.
_FIXED = (*_PLAIN, ModuleType, FunctionType, BuiltinFunctionType, type)
#: Modules whose functions answer differently each time.
_CHANGING = frozenset({"time", "datetime", "random", "os", "socket"})
_NOT_PLAIN_CALLS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
#: Calls that are examined; each copies the state of the random numbers, some kB.
_MAX_CALLS = 1000
#: Lines above a method's "def" that belong to it.
_MAX_DECORATORS = 5
#: Elements of a result that are compared: some µs.
_SAMPLED = 4096
#: Values in an argument that is a tuple or a list, and tuples in each other: sizes and settings, and no data.
_MAX_VALUES, _MAX_DEPTH = 64, 3


class _Arguments(NamedTuple):
    """What a call depends on: plain values and fingerprints of tensors, and what it reads of its object.

    ``sure`` is whether they are plain values only, which the code fixes; ``alive`` are references to the tensors.
    """

    values: tuple[Any, ...]
    attributes: tuple[Any, ...]
    sure: bool
    alive: tuple[Any, ...]


class _Open:
    """A call that has not returned yet."""

    __slots__ = ("arguments", "before", "constant", "site", "started_ns", "state")

    def __init__(self, site: Site, arguments: _Arguments, before: int, started_ns: int) -> None:
        self.site = site
        self.arguments = arguments
        self.constant = True
        #: How many constant calls had ended before it began: those after it are parts of it.
        self.before = before
        self.state = _random_state()
        self.started_ns = started_ns


class _Ended(NamedTuple):
    """A constant call: the line that called, the function, what it depends on, ns, and a sample of its result."""

    site: Site
    code: CodeType
    arguments: _Arguments
    host_ns: int
    result: int | None


class ConstantCallLog:
    """The calls with a constant result that `LineTracer` sees in one step; keeps no tensor alive.

    ``now_ns`` is its clock.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._open: dict[FrameType, _Open] = {}
        #: Those that ended, outermost only.
        self._ended: list[_Ended] = []
        self._calls = 0
        #: What the lines passed and got in the step after; None: there was none.
        self._again: dict[tuple[Site, CodeType], set[Any]] | None = None
        self._open_again: dict[FrameType, _Arguments | None] = {}

    @unseen
    def enter(self, frame: FrameType, site: Site | None) -> None:
        """A function of the user's is called from the user's line ``site``."""
        attributes = _attributes_of(frame)
        if attributes is None or not _reads_fixed(frame.f_code, frame.f_globals):
            self.spoil()
        elif site is not None and self._calls < _MAX_CALLS and not is_tracing():
            arguments = _fixed_arguments(frame, attributes)
            if arguments is not None:
                self._calls += 1
                self._open[frame] = _Open(site, arguments, len(self._ended), self._now_ns())

    def spoil(self) -> None:
        """Something ran whose answer may change: a module, or a function that reads what changes."""
        for call in self._open.values():
            call.constant = False

    @unseen
    def leave(self, frame: FrameType, result: Any) -> None:
        """A function of the user's has returned."""
        call = self._open.pop(frame, None)
        if call is None:
            return
        took_ns = self._now_ns() - call.started_ns
        if call.constant and _is_constant(result) and _random_state() == call.state:
            del self._ended[call.before :]
            self._ended.append(_Ended(call.site, frame.f_code, call.arguments, took_ns, _sample_of(result)))

    def functions(self) -> frozenset[CodeType]:
        """The functions that are to be seen again in another step, which begins now."""
        self._again = {}
        return frozenset(call.code for call in self._ended)

    @unseen
    def enter_again(self, frame: FrameType) -> None:
        """One of these functions is called in the other step."""
        attributes = _attributes_of(frame)
        self._open_again[frame] = _fixed_arguments(frame, attributes) if attributes is not None else None

    @unseen
    def leave_again(self, frame: FrameType, site: Site | None, result: Any) -> None:
        """It has returned."""
        arguments = self._open_again.pop(frame, None)
        if site is None or self._again is None:
            return
        known = [call for call in self._ended if (call.site, call.code) == (site, frame.f_code)]
        # Freed memory may hold another tensor by now.
        freed = any(reference() is None for call in known for reference in call.arguments.alive)
        seen = None if arguments is None or freed else (arguments.values, arguments.attributes, _sample_of(result))
        self._again.setdefault((site, frame.f_code), set()).add(seen)

    def rows(self) -> dict[Site, tuple[ConstantCalls, ...]]:
        """The calls from each line that passes the same arguments each time."""
        calls_of: dict[tuple[Site, CodeType], list[_Ended]] = {}
        for call in self._ended:
            calls_of.setdefault((call.site, call.code), []).append(call)
        found: dict[Site, tuple[ConstantCalls, ...]] = {}
        for (site, code), calls in calls_of.items():
            if len({call.arguments.values for call in calls}) > 1:
                continue
            seen = {(call.arguments.values, call.arguments.attributes, call.result) for call in calls}
            if self._again is None and not all(call.arguments.sure for call in calls):
                continue
            if self._again is not None and self._again.get((site, code)) != seen:
                continue
            where = Location(file=code.co_filename, line=code.co_firstlineno, function=function_name(code))
            row = ConstantCalls(called=where, calls=len(calls), host_ns=sum(call.host_ns for call in calls))
            found[site] = (*found.get(site, ()), row)
        return found


def _fixed_arguments(frame: FrameType, attributes: tuple[Any, ...]) -> _Arguments | None:
    """What a call depends on, if it may be the same in each step."""
    code, caller = frame.f_code, frame.f_back
    if code.co_flags & _NOT_PLAIN_CALLS or code.co_name.startswith("<"):
        return None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    is_method = bool(_attributes_read(code))
    values = [frame.f_locals.get(name) for name in names[is_method:]]
    tensors = [value for value in values if is_tensor(value)]
    keys = [fingerprint(value) if is_tensor(value) else _key_of(value) for value in values]
    if None in keys:
        return None
    if any(one.requires_grad or one.is_inference() for one in tensors):
        return None
    texts = {value for value in values if issubclass(type(value), str | bytes)}
    if texts and caller is not None:
        texts.difference_update(_texts_in(caller.f_code), _defaults_of(code, frame.f_globals))
    if texts:
        return None
    alive = tuple(weakref.ref(one if one._base is None else one._base) for one in tensors)
    nested = any(issubclass(type(value), tuple | list) for value in values)
    return _Arguments(tuple(keys), attributes, not (tensors or is_method or nested), alive)


def _key_of(value: Any, depth: int = 0) -> Any:
    """Equal for equal plain values, also in tuples and lists; None for others."""
    if issubclass(type(value), _PLAIN):
        return type(value), value
    if not issubclass(type(value), tuple | list) or len(value) > _MAX_VALUES or depth == _MAX_DEPTH:
        return None
    keys = tuple(_key_of(one, depth + 1) for one in value)
    return None if None in keys else (type(value), keys)


def _attributes_of(frame: FrameType) -> tuple[Any, ...] | None:
    """The plain attributes that a method reads of its object; None where it reads others, () for a function."""
    code = frame.f_code
    names = _attributes_read(code)
    if names is None:
        return None
    if not names:
        return ()
    owner = frame.f_locals.get(code.co_varnames[0])
    found = []
    for name in sorted(names - {""}):
        value = own_attribute(owner, name, ABSENT)
        if value is ABSENT:
            value = inspect.getattr_static(type(owner), name, owner)
        if issubclass(type(value), FunctionType | staticmethod | classmethod):
            function = value if isinstance(value, FunctionType) else value.__func__
            if owner_of(inspect.unwrap(function).__code__.co_filename) != USER:
                return None
        elif (key := _key_of(value)) is not None:
            found.append((name, key))
        else:
            return None
    return tuple(found)


@lru_cache(maxsize=512)
def _attributes_read(code: CodeType) -> frozenset[str] | None:
    """The attributes of its object that a method reads, with "" as a first one; () for a function.

    None where it does more with its object than to read attributes.
    """
    if not code.co_argcount or code.co_varnames[0] != "self":
        return frozenset()
    lines = range(code.co_firstlineno, code.co_firstlineno + _MAX_DECORATORS)
    named = (
        node
        for node in ast.walk(parsed(code.co_filename))
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name
    )
    node = next((one for one in named if one.lineno in lines), None)
    if node is None:
        return None
    inside = [*ast.walk(node)]
    read = {
        id(one.value): one.attr for one in inside if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load)
    }
    uses = [one for one in inside if isinstance(one, ast.Name) and one.id == "self"]
    return frozenset(("", *(read[id(one)] for one in uses))) if all(id(one) in read for one in uses) else None


@lru_cache(maxsize=512)
def _texts_in(code: CodeType) -> frozenset[str | bytes]:
    """The texts that stand in a function."""
    return frozenset(one for one in code.co_consts if isinstance(one, str | bytes))


def _defaults_of(code: CodeType, scope: dict[str, Any]) -> tuple[Any, ...]:
    """The defaults of a function of a module."""
    function = scope.get(code.co_name)
    if not isinstance(function, FunctionType) or function.__code__ is not code:
        return ()
    return (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def _reads_fixed(code: CodeType, scope: dict[str, Any]) -> bool:
    if code.co_freevars and code.co_name[0] != "<":
        return False
    values = [scope[name] for name in _globals_of(code) if name in scope]
    return all(issubclass(type(one), _FIXED) and getattr(one, "__name__", "") not in _CHANGING for one in values)


@lru_cache(maxsize=512)
def _globals_of(code: CodeType) -> tuple[str, ...]:
    """The globals that a function and the comprehensions in it read."""
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _globals_of(one)]
    own = [one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    return (*own, *inner)


def _is_constant(result: Any) -> bool:
    values = list(values_in(result)) if type(result) in (tuple, list) else [result]
    tensors = [one for one in values if is_tensor(one)]
    return bool(tensors) and len(tensors) == len(values) and not any(one.requires_grad for one in tensors)


def _sample_of(result: Any) -> int | None:
    """A number that differs where results on a CPU do: of some thousand of their elements; None: it is not known."""
    values = list(values_in(result)) if type(result) in (tuple, list) else [result]
    try:
        # Copies: torch resizes no memory that numpy has seen.
        arrays = [one.reshape(-1)[:: max(1, one.numel() // _SAMPLED)].clone().numpy() for one in values]
    except Exception as error:  # noqa: BLE001 - a device, a type that numpy has not
        leave_to_program(error)
        return None
    return hash(tuple(one.tobytes() for one in arrays))


def _random_state() -> tuple[Any, ...]:
    """The state of the generators that ops draw from; equal as long as none was drawn."""
    return random_state(), random.getstate()
