"""What torch.compile sees of a range: nothing.

Dynamo, the tracer of torch.compile, inlines what a compiled function calls and guards the ``__code__`` of each inlined
function. A decorated function's code changes whenever a listener is switched, and each change would cause a recompile.
But where a function has ``_torchdynamo_inline``, Dynamo traces and guards that function instead (torch.compile marks
its own wrappers so). Decorated functions refer it to their clone, whose code never changes; ``perfkit.range`` refers it
to a function that returns a nullcontext. Nothing has to be registered, whenever torch is imported.

All of this is private to torch. If torch changes it, a compiled program still runs, with a graph break at each range,
and `tests/ranges/test_compile.py` fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from perfkit._code_owner import owner_of

_INLINE = "_torchdynamo_inline"

#: What Dynamo says of a graph that it breaks at a function of `leave_out`.
OWN_BREAK = "a hook of perfkit"


class Attributes(dict[str, Any]):
    """The ``__dict__`` of a function, in which only attribute look-up sees Dynamo's attribute.

    ``functools.wraps`` copies a function's ``__dict__`` into the wrapper. A wrapper with this attribute would be traced
    as if it were the wrapped function, and what it adds (``torch.no_grad``) would silently be missing. So iteration and
    copies leave the attribute out.
    """

    #: The `trampoline.DecoratedFunction` of the function, where it has one.
    decorated: Any = None

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
    """Let Dynamo trace ``traced`` in place of ``function``, unless the function already refers it elsewhere."""
    attributes = Attributes(function.__dict__)
    inline = getattr(function, _INLINE, traced)
    function.__dict__ = attributes
    dict.__setitem__(attributes, _INLINE, inline)
    return attributes


#: Code of perfkit that runs inside the user's frames and is never compiled.
_ours: list[CodeType] = []


def leave_alone(*codes: CodeType) -> None:
    """Never compile these frames of perfkit, nor what they call.

    Dynamo examines each frame that runs in a compiled program and was not inlined, after a graph break or around a
    compiled function; without this it would examine these frames every time.
    """
    _ours.extend(codes)
    for code in codes:
        _set_strategy(code, callees_too=True)


def leave_out(*functions: Any) -> None:
    """Break the graph of a compiled function at calls of these functions of perfkit, which are then left alone.

    For hooks of optimizers, around whose step torch breaks it as well. What they do is not traced, and torch warns of
    nothing.
    """
    for function in functions:
        # What torch.compiler.disable sets; that loads Dynamo, which takes a second.
        function._torchdynamo_disable, function._torchdynamo_disable_msg = True, OWN_BREAK
        leave_alone(function.__code__)


def torch_loaded() -> None:
    """Repeat `leave_alone` for code that existed before torch was imported."""
    leave_alone(*(_ours.pop() for _ in range(len(_ours))))


def skip(code: CodeType) -> None:
    """Never compile a trampoline, but compile what it calls, so that a range stays around a compiled function."""
    _set_strategy(code, callees_too=False)


def has_compiled() -> bool:
    """Whether the program has compiled anything; True where that is not known."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(eval_frame, "cached_backends", None)
    # An optimizer that is made leaves an entry without a backend: its step is not to be compiled.
    return eval_frame is not None if backends is None else any(map(callable, backends.values()))


def runs_between_graphs() -> bool:
    """Whether this is called by a function that Dynamo compiled in parts, as in a hook of an optimizer.

    It puts the function modes back there that were on before, also one that was taken off meanwhile.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_name.startswith("torch_dynamo_resume_in_"):
        frame = frame.f_back
    return frame is not None


def compiles_tracing() -> bool:
    """Whether Dynamo would compile what perfkit's trace of lines calls: up to torch 2.6, where the program compiles.

    A program that is compiled with ``fullgraph=True`` would end with an error.
    """
    # perfkit does not import torch before the program does
    from torch._C._dynamo import eval_frame

    return not hasattr(eval_frame, "set_code_exec_strategy") and has_compiled()


def _set_strategy(code: CodeType, *, callees_too: bool) -> None:
    if "torch" not in sys.modules:
        return
    try:
        # perfkit does not import torch before the program does
        from torch._C._dynamo import eval_frame as of_torch
    except ImportError:
        # Another version of torch, or torch half imported: a compiled range may then break its graph.
        return
    eval_frame: Any = of_torch  # torch types the names of its own version alone
    if not hasattr(eval_frame, "set_code_exec_strategy"):
        # Torch 2.4 and 2.6 cannot leave callees alone, so each function of perfkit's is named.
        for one in (code, *_own_functions()) if callees_too else (code,):
            eval_frame.skip_code(one)
        return
    action = eval_frame._FrameAction
    callees = action.SKIP if callees_too else action.DEFAULT
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, callees))


def _own_functions() -> Iterator[CodeType]:
    """The code of all functions that what runs in a user's frame may call: of perfkit's modules that are loaded."""
    for name, module in list(sys.modules.items()):
        if name.startswith("perfkit."):
            for owner in (module, *(one for one in vars(module).values() if isinstance(one, type))):
                for function in vars(owner).values():
                    code = getattr(getattr(function, "__func__", function), "__code__", None)
                    # Modules have classes of torch's too, which Dynamo must not leave alone.
                    if isinstance(code, CodeType) and owner_of(code.co_filename) == "perfkit":
                        yield from _with_inner(code)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _with_inner(one)
