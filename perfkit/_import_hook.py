"""Run a callback when a module is imported, without importing it: ``when_imported("torch", callback)``.

So a script can set environment variables before it imports torch, and a script that never imports torch does not load
it because of perfkit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Notifying(Loader):
    """The module's own loader, with a callback after it has run."""

    def __init__(self, loader: Any, callback: Callable[[], None]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Remove every trace of this loader: torch and importlib.resources read both attributes.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback()


class _ImportWatch(MetaPathFinder):
    """A finder that wraps the loader of one module and then removes itself."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Notifying(spec.loader, self._callback)
        return spec


def when_imported(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` once, now if the module is loaded, else right after its import.

    Returns:
        A function that cancels the callback if the import has not happened yet.
    """
    if name in sys.modules:
        callback()
        return lambda: None
    watch = _ImportWatch(name, callback)
    sys.meta_path.insert(0, watch)

    def cancel() -> None:
        if watch in sys.meta_path:
            sys.meta_path.remove(watch)

    return cancel
