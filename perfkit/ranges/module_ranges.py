"""``perfkit.annotate_modules``: a range per submodule of a model, without editing the model and without hooks.

Where a module has ``_compiled_call_impl`` (``module.compile()`` sets it), ``Module.__call__`` calls that instead of
``_call_impl``. So an annotated module gets a ``_compiled_call_impl`` of its own: a copy of ``_call_impl`` with the
range around it, as the decorator makes it, which is torch's own code as long as nothing listens. The alternatives are
worse:

- a hook costs 1.3 us per call even when it does nothing, and is not called when ``forward`` raises;
- torch.compile guards the module's ``__dict__`` against a ``forward``: each compiled function that calls the module
  would be compiled again when the range is added, and again when it is removed.

torch.compile skips ``_compiled_call_impl`` for the ``forward`` of the class, so it neither breaks its graph nor
compiles again; there are no ranges inside of what it compiled. Pickles and deep copies leave the attribute out
(``Module.__getstate__`` does), and so does every other copy of the ``__dict__``, see `_AnnotatedDict`.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perfkit.errors import UsageError
from perfkit.ranges import decorator, listeners, profiler_observer, range_objects

_CALL = "_compiled_call_impl"

#: Maximum number of module names in an error message.
_SHOWN = 5

#: Selects modules: a glob pattern, a compiled regular expression, or a function of (name, module).
Pattern = str | re.Pattern[str] | Callable[[str, Any], bool]


class _AnnotatedDict(dict[str, Any]):
    """The ``__dict__`` of a module with a range; a copy of it has none.

    The call in it is bound to this module. ``nn.DataParallel`` makes its replicas from a copy of the ``__dict__``; with
    the call in it they would all run the module that they were made from.
    """

    def __init__(self, attributes: dict[str, Any], call: Any) -> None:
        super().__init__(attributes)
        self._before = {_CALL: attributes[_CALL]} if _CALL in attributes else {}
        self._call = self[_CALL] = call

    def copy(self) -> dict[str, Any]:
        plain = dict(self)
        # A call set by other code meanwhile (module.compile()) stays.
        if plain.get(_CALL) is self._call:
            del plain[_CALL]
            plain.update(self._before)
        return plain


class ModuleRanges:
    """The ranges that `annotate_modules` has put around modules, until ``remove()`` or the end of a ``with``."""

    def __init__(self, modules: Iterable[tuple[str, Any]], category: str | None, domain: str | None) -> None:
        profiler_observer.observe()
        chosen = [(range_objects.find(name, None, category, domain), module) for name, module in modules]
        #: Names of the ranges, in the model's order.
        self.names = tuple(made.name for made, _ in chosen)
        self._modules: list[Any] = []
        if listeners.disabled:
            return
        try:
            for made, module in chosen:
                call = decorator.decorate(vars(module).get(_CALL) or module._call_impl, made)
                module.__dict__ = _AnnotatedDict(module.__dict__, call)
                self._modules.append(module)
        except BaseException:
            # A module that cannot be annotated, or Ctrl-C: without a handle the others could not be removed.
            self.remove()
            raise

    def remove(self) -> None:
        """Restore every module. Removing again does nothing."""
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
    """Put a range around every call of the matching modules of a model, until the handle is removed.

    A range has the name of the module in ``model.named_modules()`` (``layers.0.attention``); that of the model itself
    is its class. A module with several names in the model is one range, under the first. No hook is added; state_dict,
    copies and pickles of the model do not change. Only calls by Python are ranges: not those inside of what
    torch.compile or TorchScript has compiled, and not a direct ``model.forward(x)``.

        with perfkit.annotate_modules(model, "layers.*.attention"):
            train(model)

    Args:
        model: a ``torch.nn.Module``.
        pattern: a glob pattern of names, in which ``*`` also matches dots; a compiled regular expression that is
            searched in the name; or a callable of (name, module).
        category: category of the ranges, as in `range`.
        domain: domain of the ranges, as in `range`.

    Returns:
        A handle: call ``handle.remove()``, or use it in a ``with``.

    Raises:
        UsageError: ``model`` is no nn.Module, nothing matches, or a matching module is annotated already.
    """
    torch_nn = sys.modules.get("torch.nn")
    if torch_nn is None or not isinstance(model, torch_nn.Module):
        raise UsageError(f"annotate_modules needs a torch.nn.Module object, got {model!r} ({type(model).__name__})")
    matches = _matcher(pattern)
    named = list(callable_modules(model))
    chosen = [(name, module) for name, module in named if matches(name, module)]
    if not chosen:
        names = ", ".join(name for name, _ in named[:_SHOWN]) or "none that can be called"
        more = f", ... ({len(named)} in all)" if len(named) > _SHOWN else ""
        raise UsageError(f"no module of {type(model).__name__} matches {pattern!r}; its modules are {names}{more}")
    twice = [name for name, module in chosen if annotated(module)]
    if twice:
        raise UsageError(
            f"{', '.join(twice[:_SHOWN])} of {type(model).__name__} is annotated already: "
            f"remove() its handle first, or select other modules with pattern"
        )
    return ModuleRanges(chosen, category, domain)


def annotated(module: Any) -> bool:
    """Whether a module has a range of `annotate_modules`."""
    return isinstance(vars(module), _AnnotatedDict)


def callable_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of the modules in a model that Python calls, the model itself first.

    Containers that are never called, TorchScript modules and the wrappers of torch.compile are left out; the module in
    a wrapper has the wrapper's name.
    """
    script = getattr(sys.modules.get("torch.jit"), "ScriptModule", ())
    for name, module in model.named_modules():
        forward = getattr(type(module), "forward", None)
        unimplemented = getattr(forward, "__name__", "") == "_forward_unimplemented" and "forward" not in vars(module)
        if not unimplemented and not isinstance(module, script) and not is_compiled(module):
            parts = [part for part in name.split(".") if part != "_orig_mod"]
            yield ".".join(parts) or type(module).__name__, module


def is_compiled(module: Any) -> bool:
    """Whether a module is the wrapper that ``torch.compile(model)`` returns."""
    wrapper = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    return isinstance(module, wrapper)


def _matcher(pattern: Any) -> Callable[[str, Any], bool]:
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
