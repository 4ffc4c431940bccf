"""``perfkit.annotate_modules``: a range per submodule of a model, without editing the model and without hooks.

``Module.__call__`` looks for one attribute first: where a module has ``_compiled_call_impl`` (torch's own
``module.compile()`` puts it there), it calls that instead of ``_call_impl``. So a module becomes a range by
a ``_compiled_call_impl`` of its own: a copy of ``_call_impl`` with the range around it, as the decorator
makes it, which is torch's own code as long as nothing listens. Against the other ways to do it:

- a hook costs 1.3 us a call even when it does nothing, and is no longer called when ``forward`` raises;
- a ``forward`` in the module's ``__dict__`` is what torch.compile guards against: each compiled function
  that calls the module would be compiled anew when the range comes, and again when it goes.

torch.compile goes past ``_compiled_call_impl`` to the ``forward`` of the class, so it neither breaks its
graph nor compiles again; inside of what it compiled there are no ranges. Pickles and deep copies leave the
attribute out (``Module.__getstate__`` does), and so does every other copy of the ``__dict__``, see `_Attributes`.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perfkit.errors import UsageError
from perfkit.ranges import context, decorator, listeners, profiler_observer

_CALL = "_compiled_call_impl"

#: How many of a model's names an error shows.
_SHOWN = 5

#: What chooses modules: a glob pattern, a compiled regular expression, or a function of (name, module).
Pattern = str | re.Pattern[str] | Callable[[str, Any], bool]


class _Attributes(dict[str, Any]):
    """The ``__dict__`` of a module with a range: a copy of it is without.

    The call that lies in it is bound to this module. ``nn.DataParallel`` makes its replicas from a copy of
    the ``__dict__``; with the call in it they would all run the module that they were made from.
    """

    def __init__(self, attributes: dict[str, Any], call: Any) -> None:
        super().__init__(attributes)
        self._before = {_CALL: attributes[_CALL]} if _CALL in attributes else {}
        self._call = self[_CALL] = call

    def copy(self) -> dict[str, Any]:
        plain = dict(self)
        # Somebody else's call (module.compile() meanwhile) is theirs and stays.
        if plain.get(_CALL) is self._call:
            del plain[_CALL]
            plain.update(self._before)
        return plain


class ModuleRanges:
    """The ranges that `annotate_modules` has put around modules; ``remove()`` or leaving a ``with`` takes them back."""

    def __init__(self, modules: Iterable[tuple[str, Any]], category: str | None, domain: str | None) -> None:
        profiler_observer.observe()
        chosen = [(context.find(name, None, category, domain), module) for name, module in modules]
        #: Names of the ranges, in the model's order.
        self.names = tuple(made.name for made, _ in chosen)
        self._modules: list[Any] = []
        if listeners.disabled:
            return
        try:
            for made, module in chosen:
                call = decorator.decorate(vars(module).get(_CALL) or module._call_impl, made)
                module.__dict__ = _Attributes(module.__dict__, call)
                self._modules.append(module)
        except BaseException:
            # A module of a make that cannot be; or Ctrl-C. The others must not stay ranges without a handle.
            self.remove()
            raise

    def remove(self) -> None:
        """Put every module back as it was. Again does nothing."""
        while self._modules:
            module = self._modules.pop()
            module.__dict__ = module.__dict__.copy()

    def __enter__(self) -> ModuleRanges:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<ranges around {len(self._modules)} modules>"


def annotate_modules(
    model: Any, pattern: Pattern = "*", *, category: str | None = None, domain: str | None = None
) -> ModuleRanges:
    """Put a range around every call of the modules of a model whose name fits, until the handle is removed.

    A range is named as ``model.named_modules()`` names the module (``layers.0.attention``), that of the model
    itself by its class. A module that the model holds under several names is one range, under the first. No hook
    is added; state_dict, copies and pickles of the model do not change. Modules are ranges where Python
    calls them: not inside of what torch.compile or TorchScript has compiled, and not by a direct
    ``model.forward(x)``.

        with perfkit.annotate_modules(model, "layers.*.attention"):
            train(model)

    Args:
        model: a ``torch.nn.Module``.
        pattern: a glob pattern of names, in which ``*`` also goes over dots; or a compiled regular expression, to be
            found in the name; or a callable of (name, module).
        category: of the ranges, as in `range`.
        domain: of the ranges, as in `range`.

    Returns:
        The handle: ``handle.remove()``, or leave its ``with``.

    Raises:
        UsageError: no nn.Module, nothing fits, or what fits has a range of this kind already.
    """
    torch_nn = sys.modules.get("torch.nn")
    if torch_nn is None or not isinstance(model, torch_nn.Module):
        raise UsageError(f"annotate_modules needs a torch.nn.Module object, got {model!r} ({type(model).__name__})")
    fits = _chooser(pattern)
    named = list(callable_modules(model))
    chosen = [(name, module) for name, module in named if fits(name, module)]
    if not chosen:
        names = ", ".join(name for name, _ in named[:_SHOWN]) or "none that can be called"
        more = f", ... ({len(named)} in all)" if len(named) > _SHOWN else ""
        raise UsageError(f"no module of {type(model).__name__} fits {pattern!r}; its modules are {names}{more}")
    twice = [name for name, module in chosen if annotated(module)]
    if twice:
        raise UsageError(
            f"{', '.join(twice[:_SHOWN])} of {type(model).__name__} is annotated already: "
            f"remove() the handle that did it first, or choose others by pattern"
        )
    return ModuleRanges(chosen, category, domain)


def annotated(module: Any) -> bool:
    """Whether a module has a range of `annotate_modules`."""
    return isinstance(vars(module), _Attributes)


def callable_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of the modules in a model that Python calls, the model itself first.

    Containers that are never called, TorchScript modules, and the wrappers of torch.compile are left out; what a
    wrapper holds has the wrapper's name.
    """
    script = getattr(sys.modules.get("torch.jit"), "ScriptModule", ())
    for name, module in model.named_modules():
        forward = getattr(type(module), "forward", None)
        unimplemented = getattr(forward, "__name__", "") == "_forward_unimplemented" and "forward" not in vars(module)
        if not unimplemented and not isinstance(module, script) and not is_compiled(module):
            parts = [part for part in name.split(".") if part != "_orig_mod"]
            yield ".".join(parts) or type(module).__name__, module


def is_compiled(module: Any) -> bool:
    """Whether a module is the wrapper that ``torch.compile(model)`` gives."""
    wrapper = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    return isinstance(module, wrapper)


def _chooser(pattern: Any) -> Callable[[str, Any], bool]:
    if isinstance(pattern, str):
        return lambda name, _: fnmatch.fnmatchcase(name, pattern)
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return lambda name, _: pattern.search(name) is not None
    if callable(pattern) and not isinstance(pattern, type):
        return lambda name, module: bool(pattern(name, module))
    raise UsageError(
        f"pattern must be a str with * and ?, a compiled regular expression or a callable of (name, module), "
        f"got {pattern!r} ({type(pattern).__name__})"
    )
