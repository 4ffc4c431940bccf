"""Functions of the user's that return the same tensors in every step, as far as the traced step shows.

The result of a call is constant if nothing that it reads changes: its arguments are plain values, the globals that it
and the user's functions in it read are modules, functions, classes and plain values, it closes over nothing, calls no
module, no random number is drawn meanwhile, and what it returns are tensors without a graph.

One step does not show whether an argument is the same in the next. Numbers are taken for sizes, unless the same line
passes different ones; texts are taken for data, unless they stand in the code of the caller or are a default.
"""

from __future__ import annotations

import dis
import inspect
import random
import time
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from perfkit._code_owner import function_name
from perfkit._location import Location
from perfkit.record.samplers.module_calls import Site, random_state
from perfkit.run.records import ConstantCalls

_PLAIN = (bool, int, float, str, bytes, type(None))
#: Globals that do not change; the value of a class or module is what its attributes are set to once.
_FIXED = (*_PLAIN, ModuleType, FunctionType, BuiltinFunctionType, type)
#: Modules whose functions answer differently each time.
_CHANGING = frozenset({"time", "datetime", "random", "os", "socket"})
_NOT_PLAIN_CALLS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
#: Calls that are examined; each copies the state of the random numbers, some kB.
_MAX_CALLS = 1000


class _Open:
    """A call that has not returned yet."""

    __slots__ = ("arguments", "before", "constant", "site", "started_ns", "state")

    def __init__(self, site: Site, arguments: tuple[Any, ...], before: int) -> None:
        self.site = site
        self.arguments = arguments
        self.constant = True
        #: How many constant calls had ended before it began: those after it are parts of it.
        self.before = before
        self.state = _random_state()
        self.started_ns = time.perf_counter_ns()


class ConstantCallLog:
    """The calls with a constant result that `LineTracer` sees in one step; keeps no tensor alive."""

    def __init__(self) -> None:
        self._open: dict[FrameType, _Open] = {}
        #: Those that ended, outermost only: the line that called, the function, its arguments, ns.
        self._ended: list[tuple[Site, CodeType, tuple[Any, ...], int]] = []
        self._calls = 0

    def enter(self, frame: FrameType, site: Site | None) -> None:
        """A function of the user's is called from the user's line ``site``."""
        code = frame.f_code
        if not _reads_fixed(code, frame.f_globals):
            self.spoil()
        elif site is not None and self._calls < _MAX_CALLS:
            arguments = _fixed_arguments(frame)
            if arguments is not None:
                self._calls += 1
                self._open[frame] = _Open(site, arguments, len(self._ended))

    def spoil(self) -> None:
        """Something ran whose answer may change: a module, or a function that reads what changes."""
        for call in self._open.values():
            call.constant = False

    def leave(self, frame: FrameType, result: Any) -> None:
        """A function of the user's has returned."""
        call = self._open.pop(frame, None)
        if call is None:
            return
        took_ns = time.perf_counter_ns() - call.started_ns
        if call.constant and _is_constant(result) and _random_state() == call.state:
            del self._ended[call.before :]
            self._ended.append((call.site, frame.f_code, call.arguments, took_ns))

    def rows(self) -> dict[Site, tuple[ConstantCalls, ...]]:
        """The calls from each line that passes the same arguments each time."""
        times_of: dict[tuple[Site, CodeType], list[int]] = {}
        arguments_of: dict[tuple[Site, CodeType], set[tuple[Any, ...]]] = {}
        for site, code, arguments, took_ns in self._ended:
            times_of.setdefault((site, code), []).append(took_ns)
            arguments_of.setdefault((site, code), set()).add(arguments)
        found: dict[Site, tuple[ConstantCalls, ...]] = {}
        for (site, code), times in times_of.items():
            if len(arguments_of[site, code]) > 1:
                continue
            where = Location(file=code.co_filename, line=code.co_firstlineno, function=function_name(code))
            row = ConstantCalls(called=where, calls=len(times), host_ns=sum(times))
            found[site] = (*found.get(site, ()), row)
        return found


def _fixed_arguments(frame: FrameType) -> tuple[Any, ...] | None:
    """The arguments of a call, if they may be the same in each step."""
    code, caller = frame.f_code, frame.f_back
    if code.co_flags & _NOT_PLAIN_CALLS or code.co_name.startswith("<"):
        return None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = tuple(frame.f_locals.get(name) for name in names)
    if not all(isinstance(value, _PLAIN) for value in values):
        return None
    texts = {value for value in values if isinstance(value, str | bytes)}
    if texts and caller is not None:
        texts.difference_update(_texts_in(caller.f_code), _defaults_of(code, frame.f_globals))
    return None if texts else values


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
    return all(isinstance(one, _FIXED) and getattr(one, "__name__", "") not in _CHANGING for one in values)


@lru_cache(maxsize=512)
def _globals_of(code: CodeType) -> tuple[str, ...]:
    """The globals that a function and the comprehensions in it read."""
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _globals_of(one)]
    own = [one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    return (*own, *inner)


def _is_constant(result: Any) -> bool:
    values = result if isinstance(result, tuple | list) else (result,)
    tensors = [one for one in values if isinstance(one, torch.Tensor)]
    return bool(tensors) and len(tensors) == len(values) and not any(one.requires_grad for one in tensors)


def _random_state() -> tuple[Any, ...]:
    """The state of the generators that ops draw from; equal as long as none was drawn."""
    return random_state(), random.getstate()
