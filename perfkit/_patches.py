"""What is replaced while a detection runs, and how it is put back.

Every attribute that this room replaces goes through a `Patches`, which puts all back in reverse order.
`installed` lists what is in place now: empty after the last detection has ended, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()

#: What is in place now, in order of installation: attributes, modes, the warnings filter.
_installed: list[str] = []


def installed() -> list[str]:
    """Names of everything this room has in place now; empty when no detection runs."""
    return list(_installed)


def note_installed(what: str) -> None:
    """List something that is no attribute (a mode, a filter) while it is in place."""
    _installed.append(what)


def note_removed(what: str) -> None:
    """Take an entry of `note_installed` off the list; one that is not there is left alone."""
    if what in _installed:
        _installed.remove(what)


def _name(owner: Any) -> str:
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    return f"{module}.{name}" if module else str(name)


class Patches:
    """Attributes replaced together and put back together."""

    def __init__(self) -> None:
        self._undo: list[tuple[str, Callable[[], None]]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name``; where the owner only inherited it, `undo` deletes it again."""
        # vars() and not getattr: most Tensor methods are inherited, and a class must get its own
        # descriptor back (a staticmethod, not the function that getattr unwraps).
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

        def put_back() -> None:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self.add(f"{_name(owner)}.{name}", put_back)

    def add(self, what: str, undo: Callable[[], None]) -> None:
        """Note something else that was put in place, and how `undo` takes it away."""
        self._undo.append((what, undo))
        note_installed(what)

    def undo(self) -> None:
        """Put everything back, last first; one that fails does not keep the others from it."""
        errors: list[Exception] = []
        while self._undo:
            what, put_back = self._undo.pop()
            note_removed(what)
            try:
                put_back()
            except Exception as error:  # noqa: BLE001 - the rest must still be put back; told below
                errors.append(error)
        if errors:
            raise errors[0]
