"""perfkit: see where a PyTorch training step spends its time, which line it is, and what to change.

Write ``import perfkit`` and use the names from there; ``from perfkit import *`` would hide the builtin ``range``.
``__init__.pyi`` lists the public names and their modules, for type checkers and for this file.

Importing perfkit imports neither torch, numpy nor any optional package. The first use of any name here imports the
modules of all of them, which import none of these either. Why all at once: the interpreter (3.11 and later) specializes
``perfkit.range`` in a loop to an array access, but not for a module that has a ``__getattr__``. So the first use stores
every name and removes ``__getattr__``; an AttributeError that names the right import could not stay. Measured:
``with perfkit.range("x")`` costs 110 ns without it, 128 with it, while nothing listens.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perfkit._version import VERSION as __version__


def _read_modules() -> dict[str, str]:
    """Public name -> module, from the lines "from MODULE import NAME as NAME" of the stub."""
    stub = __spec__.loader.get_data(f"{__path__[0]}/__init__.pyi").decode()
    imports = [line.split() for line in stub.splitlines() if line.startswith("from perfkit.")]
    return {name: module for _, module, _, name, *_ in imports}


_MODULES = _read_modules()

__all__ = ["__version__", *_MODULES]

#: Not public: a name that two adapters define, which says so when it is called.
_MODULES["ProfilerCallback"] = "perfkit.integrations"


def __getattr__(name: str) -> Any:
    if name == "integrations":
        return import_module("perfkit.integrations")
    if name not in _MODULES:
        raise AttributeError(f"module 'perfkit' has no attribute {name!r}")
    names = globals()
    names[name] = getattr(import_module(_MODULES[name]), name)
    try:
        names.update({other: getattr(import_module(module), other) for other, module in _MODULES.items()})
    except ImportError:
        # Some names need a dependency that is not installed. The others are found here each time.
        pass
    else:
        # Two threads may be here for their first name.
        names.pop("__getattr__", None)
    return names[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
