"""What torch.compile sees of a range: nothing at all.

Dynamo, the tracer of torch.compile, inlines what a compiled function calls, and guards the ``__code__`` of
each function it inlined; a decorated function's code changes whenever something begins or stops to listen,
and each change would cost a recompile. But Dynamo follows one attribute first: where a function has
``_torchdynamo_inline``, it traces and guards that function instead (torch.compile marks its own wrappers
so). Decorated functions point it to their clone, whose code never changes; ``perfkit.range`` points it to a
function that returns a nullcontext. So nothing has to be registered, whenever torch is imported.

All of it is private to torch. If it moves, a compiled program still runs: it breaks its graph at a range,
and `tests/ranges/test_compile.py` tells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

_INLINE = "_torchdynamo_inline"


class Attributes(dict[str, Any]):
    """The ``__dict__`` of a function, with Dynamo's attribute in it where only attribute look-up sees it.

    ``functools.wraps`` copies a function's ``__dict__`` into the wrapper. A wrapper with our attribute would
    be traced as if it were the wrapped function, and what it adds (``torch.no_grad``) would silently be
    missing. Everything that iterates or copies this dictionary is therefore shown the rest only.
    """

    #: What `decorator` keeps about the function.
    site: Any = None

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in dict.keys(self) if key != _INLINE])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.items(),)


def trace_instead(function: Any, traced: Callable[..., Any]) -> Attributes:
    """Let Dynamo trace ``traced`` where it meets ``function``; a function that says so already keeps its own."""
    attributes = Attributes(function.__dict__)
    inline = getattr(function, _INLINE, traced)
    function.__dict__ = attributes
    dict.__setitem__(attributes, _INLINE, inline)
    return attributes


#: Code of perfkit that runs inside the user's frames, and is never to be compiled.
_ours: list[CodeType] = []


def leave_alone(*codes: CodeType) -> None:
    """Never compile these frames of ours, nor what they call.

    Dynamo looks at each frame that runs inside a compiled program and was not inlined, after a graph break
    or around a compiled function; without this it would look at ours again and again.
    """
    _ours.extend(codes)
    for code in codes:
        _run_as_it_is(code, callees_too=True)


def torch_loaded() -> None:
    """Say it again for what was there before torch."""
    leave_alone(*(_ours.pop() for _ in range(len(_ours))))


def skip(code: CodeType) -> None:
    """Run a trampoline as it is, but compile what it calls: so a range stays around a compiled function."""
    _run_as_it_is(code, callees_too=False)


def _run_as_it_is(code: CodeType, *, callees_too: bool) -> None:
    if "torch" not in sys.modules:
        return
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        # Another torch, or torch half imported: without the mark a compiled range may break its graph.
        return
    callees = _FrameAction.SKIP if callees_too else _FrameAction.DEFAULT
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, callees))
