"""Functions of the user's that return the same tensors in every step, as far as the traced step shows.

The result of a call is constant if nothing that it reads changes: its arguments are plain values, the globals that it
and the user's functions in it read are modules, functions, classes and plain values, it closes over nothing, calls no
module, no random number is drawn meanwhile, and what it returns are tensors without a graph.
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
from perfkit.record.samplers.module_calls import Site
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

    __slots__ = ("before", "constant", "site", "started_ns", "state")

    def __init__(self, site: Site, before: int) -> None:
        self.site = site
        self.constant = True
        #: How many constant calls had ended before it began: those after it are parts of it.
        self.before = before
        self.state = _random_state()
        self.started_ns = time.perf_counter_ns()


class ConstantCallLog:
    """The calls with a constant result that `LineTracer` sees in one step; keeps no tensor alive."""

    def __init__(self) -> None:
        self._open: dict[FrameType, _Open] = {}
        #: Those that ended, outermost only: the line that called, the function, ns.
        self._ended: list[tuple[Site, CodeType, int]] = []
        self._calls = 0

    def enter(self, frame: FrameType, site: Site | None) -> None:
        """A function of the user's is called from the user's line ``site``."""
        code = frame.f_code
        if not _reads_fixed(code, frame.f_globals):
            self.spoil()
        elif site is not None and self._calls < _MAX_CALLS and _has_plain_arguments(frame):
            self._calls += 1
            self._open[frame] = _Open(site, len(self._ended))

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
            self._ended.append((call.site, frame.f_code, took_ns))

    def rows(self) -> dict[Site, tuple[ConstantCalls, ...]]:
        """The calls from each line."""
        sums: dict[tuple[Site, CodeType], list[int]] = {}
        for site, code, took_ns in self._ended:
            sums.setdefault((site, code), []).append(took_ns)
        found: dict[Site, tuple[ConstantCalls, ...]] = {}
        for (site, code), times in sums.items():
            where = Location(file=code.co_filename, line=code.co_firstlineno, function=function_name(code))
            row = ConstantCalls(called=where, calls=len(times), host_ns=sum(times))
            found[site] = (*found.get(site, ()), row)
        return found


def _has_plain_arguments(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_flags & _NOT_PLAIN_CALLS or code.co_name.startswith("<"):
        return False
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    arguments = frame.f_locals
    return all(isinstance(arguments.get(name), _PLAIN) for name in names)


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
    return torch.get_rng_state().numpy().tobytes(), random.getstate()
