"""Families: packages whose folders hold modules of one shape, as rules and changes are."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType


def family_of(module: ModuleType) -> str:
    """The name of the folder that a member lies in."""
    return module.__name__.split(".")[-2]


def members(package: ModuleType) -> Iterator[ModuleType]:
    """The public modules in the folders of ``package``, by folder and name."""
    for _, family, is_folder in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if is_folder:
            for _, name, _ in pkgutil.iter_modules(import_module(family).__path__, f"{family}."):
                if not name.rsplit(".", 1)[-1].startswith("_"):
                    yield import_module(name)
