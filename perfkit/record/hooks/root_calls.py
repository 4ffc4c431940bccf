"""Sees the calls of modules that come from outside of any other module: of a model, a loss, a part of a planner.

Hooks on modules would cost every call of every module (see `torch_hooks`). Instead ``torch.nn.Module.__call__`` is
replaced until the first few calls have come, but not while one runs, and from then on only the ``__call__`` of their
classes is. `look_again` sees the next few calls so, in a program that begins with many calls of one model (a rollout).
A model that is called for the first time later, and is of a class of its own, is not seen.

Dynamo compiles again what it compiled while a method was replaced that is put back later. So in a program that uses
torch.compile, only the calls of its compiled modules are seen, which happen outside of what Dynamo compiles.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from perfkit._code_owner import own_work
from perfkit._patches import Patches
from perfkit.ranges import dynamo

#: Calls from outside by which the classes are found: a usual step has two or three, of its models and of its loss.
_FIRST_CALLS = 16

#: How often `look_again` looks: it takes 0.2 ms for each of these calls.
_MAX_LOOKS = 3

#: What is called before a call, with the module and its arguments; what it returns is called after the call.
Before = Callable[[Any, Any], Callable[[], None] | None]


class RootCalls:
    """Calls ``before`` with the module and its arguments before each such call on the thread ``thread()``."""

    def __init__(self, thread: Callable[[], int], before: Before) -> None:
        self._thread = thread
        self._before = before
        #: What replaces the method of all modules, and those of single classes.
        self._of_all = Patches()
        self._of_classes = Patches()
        self._compile = Patches()
        self._classes: set[type] = set()
        self._calls = self._looks = 0
        self._inside = False

    def attach(self) -> None:
        """See the calls from now on."""
        if dynamo.has_compiled():
            self._see_compiled()
        else:
            self._see_all()
            self._compile.wrap(torch, "compile", self._before_compile)

    def look_again(self) -> None:
        """Find the classes of the next calls as well; called between steps, where it does so three times."""
        # Not where a compiler is in use.
        if self._compile and self._calls >= _FIRST_CALLS and self._looks < _MAX_LOOKS and not dynamo.has_compiled():
            self._calls, self._looks = 0, self._looks + 1
            self._see_all()

    def detach(self) -> None:
        """Undo all patches."""
        self._calls = _FIRST_CALLS
        for patches in (self._compile, self._of_all, self._of_classes):
            patches.undo()

    def _before_compile(self, compile: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            result = compile(*args, **kwargs)  # nothing is compiled before the result is called
            if self._compile:
                self._see_compiled()
            return result

        return compile_

    def _see_compiled(self) -> None:
        self.detach()
        module = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
        if module is not None:
            self._of_classes.wrap(module, "__call__", self._see_call_of_compiled)

    def _see_call_of_compiled(self, call: Callable[..., Any]) -> Callable[..., Any]:
        seen: Any = self._see_call(call)
        # A code of its own: that of other modules' calls is not to be skipped. A compiled backward would compile it.
        seen.__code__ = seen.__code__.replace()
        dynamo.skip(seen.__code__)
        return seen  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        # A class that is pickled by value, because it is defined in __main__, takes its replaced method along.
        return RootCalls, (_no_thread, _do_nothing)

    def _see_all(self) -> None:
        self._of_all.wrap_for_instances(torch.nn.Module, "__call__", self._find_class)

    def _find_class(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._is_root():
                return call(module, *args, **kwargs)
            seen = self._see_call(call)
            kind, own = type(module), type(module).__call__
            if kind not in self._classes:
                self._classes.add(kind)
                self._of_classes.set(kind, "__call__", seen if own is torch.nn.Module.__call__ else self._see_call(own))
            return seen(module, *args, **kwargs)

        return __call__

    def _see_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._is_root():
                return call(module, *args, **kwargs)
            after = self._begin(module, args, kwargs)
            try:
                return call(module, *args, **kwargs)
            finally:
                self._end(after)

        return __call__

    def _is_root(self) -> bool:
        return not self._inside and get_ident() == self._thread()

    @own_work
    def _begin(self, module: Any, args: Any, kwargs: Any) -> Callable[[], None] | None:
        after = self._before(module, (args, kwargs))
        if self._of_all:
            # While it runs, nothing else is replaced: a compiler that reads the model sees torch's own method.
            self._of_all.undo()
        self._inside = True
        return after

    @own_work
    def _end(self, after: Callable[[], None] | None) -> None:
        self._inside = False
        if after is not None:
            after()
        if self._calls < _FIRST_CALLS:
            self._calls += 1
            if self._calls < _FIRST_CALLS:
                self._see_all()

    # They run between frames that Dynamo examines: around a compiled module, and in a backward that it compiles.
    dynamo.leave_alone(_is_root.__code__, _begin.__code__, _end.__code__)


def _no_thread() -> int:
    return -1


def _do_nothing(module: Any, inputs: Any) -> None:
    return None
