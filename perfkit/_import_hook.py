"""Run a callback when a module is imported, without importing it: ``when_imported("torch", callback)``.

So a script can set environment variables before it imports torch, and a script that never imports torch does not load
it because of perfkit. A program that only looks a module up (``importlib.util.find_spec``) finds the module's own
loader, and has not imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _ImportWatch(MetaPathFinder):
    """A finder that makes the loader of one module report that it has run; it removes itself after that."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = self._find_without_this(path, target)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _find_without_this(self, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        """What the finders after this one find; several can wait for one module."""
        finders = list(sys.meta_path)
        later = finders[finders.index(self) + 1 :] if self in finders else []
        found = (finder.find_spec(self._name, path, target) for finder in later if hasattr(finder, "find_spec"))
        return next((spec for spec in found if spec is not None), None)

    def _watch(self, loader: object) -> None:
        """Wrap the one function of this loader object; its type stays, because programs look at it and read from it."""
        run = loader.exec_module  # type: ignore[attr-defined]  # all loaders since Python 3.4 have it

        def exec_module(module: ModuleType) -> None:
            run(module)
            # A loader may load several modules, and an import that failed is tried again.
            if module.__name__ == self._name:
                vars(loader).pop("exec_module", None)
                self._imported()

        vars(loader)["exec_module"] = exec_module

    def _imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._callback()


def when_imported(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` once, now if the module is loaded, else right after its import.

    Returns:
        A function that cancels the callback if the import has not happened yet.
    """
    if name in sys.modules:
        callback()
        return lambda: None
    watch = _ImportWatch(name, callback)
    # The outermost of several: what was registered first is called first.
    sys.meta_path.insert(0, watch)

    def cancel() -> None:
        if watch in sys.meta_path:
            sys.meta_path.remove(watch)

    return cancel
